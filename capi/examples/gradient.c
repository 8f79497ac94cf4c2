// Computes the loss of a linear map by operations called by name, and the gradient of each weight.
#include <netcl.h>
#include <stdio.h>
#include <stdlib.h>

static void must(netcl_status status) {
  if (status != NETCL_STATUS_OK) {
    fprintf(stderr, "%s\n", netcl_last_error());
    exit(1);
  }
}

static netcl_tensor *op(const char *name, netcl_tensor *a, netcl_tensor *b) {
  netcl_tensor *inputs[2] = {a, b}, *out;
  must(netcl_op(name, inputs, b ? 2 : 1, NULL, 0, &out, 1, NULL));
  return out;
}

int main(void) {
  const size_t of_x[2] = {2, 3}, of_w[2] = {3, 1};
  const float x[6] = {1, 2, 3, 4, 5, 6}, weights[3] = {0.5f, -1, 0.25f};
  float loss, slope[3];
  netcl_device *device;
  netcl_tensor *tx, *tw, *w, *grad;
  must(netcl_device_open(NULL, &device));
  must(netcl_tensor_create(device, NETCL_F32, of_x, 2, x, sizeof x, &tx));
  must(netcl_tensor_create(device, NETCL_F32, of_w, 2, weights, sizeof weights, &tw));
  must(netcl_tensor_parameter(tw, "w", &w));
  netcl_tensor *y = op("matmul", tx, w), *squares = op("square", y, NULL), *sum = op("sum", squares, NULL);
  must(netcl_backward(sum, NULL));
  must(netcl_tensor_grad(w, &grad));
  must(netcl_tensor_read(sum, &loss, sizeof loss));
  must(netcl_tensor_read(grad, slope, sizeof slope));
  printf("loss %g, its slopes %g %g %g\n", loss, slope[0], slope[1], slope[2]);
  netcl_tensor *all[] = {tx, tw, w, y, squares, sum, grad};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) must(netcl_tensor_free(all[i]));
  must(netcl_device_close(device));
  return 0;
}
