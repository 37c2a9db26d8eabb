"""What is known about methods without running them, and what is measured about kernels and theory."""
