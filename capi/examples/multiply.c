// Multiplies two matrices with the driver's functions, and computes the gradient of the product.
#include <netcl_driver.h>
#include <stdio.h>

int main(void) {
  const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1}, dc[4] = {1, 1, 1, 1};
  float c[4], da[6];
  if (!initialize_gpu(0)) {
    fprintf(stderr, "%s\n", netcl_last_error());
    return 1;
  }
  void *ga = allocate_gpu_memory(0, sizeof a), *gb = allocate_gpu_memory(0, sizeof b), *gc = allocate_gpu_memory(0, sizeof c);
  void *gdc = allocate_gpu_memory(0, sizeof dc), *gda = allocate_gpu_memory(0, sizeof da);
  write_host_to_gpu_blocking(0, ga, 0, sizeof a, a);
  write_host_to_gpu_blocking(0, gb, 0, sizeof b, b);
  write_host_to_gpu_blocking(0, gdc, 0, sizeof dc, dc);
  execute_matmul_on_gpu(0, ga, gb, gc, 1, 2, 2, 3);                      // C (2, 2) = A (2, 3) · B (3, 2)
  execute_matmul_backward_on_gpu(0, ga, gb, gdc, gda, NULL, 1, 2, 2, 3); // dA alone
  read_gpu_to_host_blocking(0, gc, 0, sizeof c, c);
  read_gpu_to_host_blocking(0, gda, 0, sizeof da, da);
  printf("C  = %g %g / %g %g\n", c[0], c[1], c[2], c[3]);
  printf("dA = %g %g %g / %g %g %g\n", da[0], da[1], da[2], da[3], da[4], da[5]);
  if (!execute_matmul_on_gpu(0, ga, gb, gc, 1, 2, 2, 1000)) printf("%s\n", netcl_last_error());
  shutdown_driver();
  return 0;
}
