"""What makes a recorded CUDA graph fast: traced operators, fused kernels chosen by trial, parallel branches."""
