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
