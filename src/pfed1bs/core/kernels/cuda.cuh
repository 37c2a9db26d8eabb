#define DEVICE static __device__ __forceinline__
#define KERNEL_OF(threads) KERNEL_WITH(threads, 1024 / (threads))
#define KERNEL_WITH(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define CONSTANT const __grid_constant__
#define SHARED(type, name) extern __shared__ type name[]
#define THREAD ((int)threadIdx.x)
#define BLOCK ((long long)blockIdx.x)
#define SYNCHRONISE __syncthreads()
#define POPCOUNT(x) __popc(x)
#define ATOMIC_MIN(place, value) atomicMin(place, value)
#define ATOMIC_ADD(place, value) atomicAdd(place, value)
/* Begin to copy 1, 2 or 4 numbers, at addresses aligned to as many, into shared memory, or as many zeros; and wait. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define COPY(count, to, from, known) \
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((unsigned)__cvta_generic_to_shared(to)), \
                 "l"(from), "n"(4 * (count)), "r"((known) ? 4 * (count) : 0) : "memory")
#define COPIED asm volatile("cp.async.wait_all;" ::: "memory")
#else
#define COPY(count, to, from, known) \
    for (int copied = 0; copied < (count); copied++) (to)[copied] = (known) ? (from)[copied] : 0
#define COPIED
#endif
