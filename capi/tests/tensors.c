// Tensors, operations by name, and gradients. Arguments: the device [default: auto], and a model for text generation [optional].
#include "check.h"

static netcl_device *device;

static netcl_tensor *made(const float *data, size_t rows, size_t columns) {
  const size_t shape[2] = {rows, columns};
  netcl_tensor *out = NULL;
  CHECK(!netcl_tensor_create(device, NETCL_F32, shape, 2, data, data ? rows * columns * sizeof *data : 0, &out));
  return out;
}

static netcl_tensor *op(const char *name, netcl_tensor *a, netcl_tensor *b) {
  netcl_tensor *inputs[2] = {a, b}, *out = NULL;
  CHECK(!netcl_op(name, inputs, b ? 2 : 1, NULL, 0, &out, 1, NULL));
  return out;
}

static void gradients(void) {
  const float x[6] = {1, 2, 3, 4, 5, 6}, w[6] = {1, -1, 2, 0.5f, -0.5f, 1};
  netcl_tensor *tx = made(x, 2, 3), *tw = made(w, 3, 2), *parameter = NULL, *grad = (netcl_tensor *)1;
  CHECK(!netcl_tensor_parameter(tw, "w", &parameter));
  CHECK(!netcl_tensor_grad(parameter, &grad) && grad == NULL);
  netcl_tensor *y = op("matmul", tx, parameter), *square = op("square", y, NULL), *loss = op("sum", square, NULL);
  float values[4], total, dw[6], expected[6] = {0};
  CHECK(!netcl_tensor_read(y, values, sizeof values) && !netcl_tensor_read(loss, &total, sizeof total));
  double sum = 0;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      double at = 0;
      for (int k = 0; k < 3; k++) at += x[i * 3 + k] * w[k * 2 + j];
      CHECK(fabs(values[i * 2 + j] - at) < 1e-5);
      sum += at * at;
      for (int k = 0; k < 3; k++) expected[k * 2 + j] += (float)(2 * at * x[i * 3 + k]);
    }
  CHECK(fabs(total - sum) < 1e-4);
  CHECK(!netcl_backward(loss, NULL) && !netcl_tensor_grad(parameter, &grad) && grad != NULL);
  CHECK(!netcl_tensor_read(grad, dw, sizeof dw));
  for (int i = 0; i < 6; i++) CHECK(fabs(dw[i] - expected[i]) < 1e-4);
  CHECK(netcl_backward(loss, NULL) == NETCL_STATUS_UNSUPPORTED); // its graph was already used
  CHECK(netcl_backward(y, NULL) == NETCL_STATUS_SHAPE);
  CHECK(!netcl_tensor_free(grad) && !netcl_tensor_zero_grad(parameter) && !netcl_tensor_grad(parameter, &grad) && grad == NULL);
  // Without recording, the graph of a backward pass does not exist.
  CHECK(!netcl_no_grad_begin() && !netcl_no_grad_begin() && !netcl_no_grad_end());
  netcl_tensor *quiet = op("sum", parameter, NULL);
  CHECK(netcl_backward(quiet, NULL) == NETCL_STATUS_UNSUPPORTED);
  CHECK(!netcl_no_grad_end() && netcl_no_grad_end() == NETCL_STATUS_ARGUMENT);
  netcl_tensor *all[] = {tx, tw, parameter, y, square, loss, quiet};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK(!netcl_tensor_free(all[i]));
}

static void operations(void) {
  const float x[6] = {1, 5, 3, 4, 2, 6};
  netcl_tensor *t = made(x, 2, 3), *outputs[3] = {NULL}, *copy = NULL;
  // Use several results, attributes and optional inputs.
  netcl_attribute k = {.name = "k", .kind = NETCL_INTEGER, .integer = 2};
  size_t count = 0, rank = 0, shape[4];
  CHECK(!netcl_op("topk", &t, 1, &k, 1, outputs, 3, &count) && count == 2);
  float top[4];
  unsigned ids[4];
  int dtype = -1;
  CHECK(!netcl_tensor_read(outputs[0], top, sizeof top) && top[0] == 5 && top[1] == 3 && top[2] == 6 && top[3] == 4);
  CHECK(!netcl_tensor_dtype(outputs[1], &dtype) && dtype == NETCL_U32);
  CHECK(!netcl_tensor_read(outputs[1], ids, sizeof ids) && ids[0] == 1 && ids[1] == 2 && ids[2] == 2 && ids[3] == 0);
  CHECK(!netcl_tensor_free(outputs[0]) && !netcl_tensor_free(outputs[1]));
  const int64_t sizes[2] = {3, -1};
  netcl_attribute to = {.name = "shape", .kind = NETCL_INTEGERS, .integers = sizes, .count = 2};
  CHECK(!netcl_op("reshape", &t, 1, &to, 1, outputs, 1, NULL));
  CHECK(!netcl_tensor_shape(outputs[0], shape, 4, &rank) && rank == 2 && shape[0] == 3 && shape[1] == 2);
  CHECK(netcl_tensor_shape(outputs[0], shape, 1, &rank) == NETCL_STATUS_ARGUMENT);
  CHECK(!netcl_tensor_free(outputs[0]));
  CHECK(netcl_op("topk", &t, 1, &k, 1, outputs, 1, &count) == NETCL_STATUS_ARGUMENT && count == 2);
  // Error messages name the problem.
  CHECK(netcl_op("sofmax", &t, 1, NULL, 0, outputs, 1, NULL) == NETCL_STATUS_FORMAT && strstr(netcl_last_error(), "softmax"));
  CHECK(netcl_op("topk", &t, 1, NULL, 0, outputs, 1, NULL) == NETCL_STATUS_FORMAT && strstr(netcl_last_error(), "attribute k"));
  netcl_tensor *pair[2] = {t, t};
  CHECK(netcl_op("matmul", pair, 2, NULL, 0, outputs, 1, NULL) == NETCL_STATUS_SHAPE);
  // All operations have a name and a description.
  CHECK(netcl_op_count() > 50 && netcl_op_name(netcl_op_count()) == NULL && netcl_op_describe("none such") == NULL);
  for (size_t i = 0; i < netcl_op_count(); i++) CHECK(strchr(netcl_op_describe(netcl_op_name(i)), '\n'));
  // Cloned handles share memory; a tensor is overwritten; elements are zeros without data.
  float back[6] = {9, 9, 9, 9, 9, 9};
  CHECK(!netcl_tensor_clone(t, &copy) && !netcl_tensor_write(t, back, sizeof back) && !netcl_tensor_free(t));
  CHECK(!netcl_tensor_read(copy, back, sizeof back) && back[5] == 9);
  CHECK(netcl_tensor_read(copy, back, 5) == NETCL_STATUS_ARGUMENT && netcl_tensor_write(copy, back, 4) == NETCL_STATUS_SHAPE);
  CHECK(netcl_tensor_read(t, back, sizeof back) == NETCL_STATUS_HANDLE && netcl_tensor_free(t) == NETCL_STATUS_HANDLE);
  CHECK(!netcl_tensor_detach(copy, &t) && !netcl_tensor_free(t) && !netcl_tensor_free(copy));
  t = made(NULL, 2, 3);
  CHECK(!netcl_tensor_read(t, back, sizeof back) && back[0] == 0 && back[5] == 0 && !netcl_tensor_free(t));
  // An element of a mask is a byte; every nonzero byte becomes 1.
  const unsigned char given[3] = {1, 0, 7};
  const size_t odd[1] = {3};
  unsigned char found[3] = {9, 9, 9};
  CHECK(!netcl_tensor_create(device, NETCL_MASK, odd, 1, given, sizeof given, &t) && !netcl_tensor_read(t, found, sizeof found));
  CHECK(found[0] == 1 && found[1] == 0 && found[2] == 1 && netcl_tensor_read(t, back, 12) == NETCL_STATUS_ARGUMENT && !netcl_tensor_free(t));
  const size_t huge[2] = {(size_t)1 << 40, (size_t)1 << 40}, large[1] = {(size_t)1 << 50};
  CHECK(netcl_tensor_create(device, NETCL_F32, huge, 2, NULL, 0, &t) == NETCL_STATUS_ARGUMENT);
  CHECK(netcl_tensor_create(device, NETCL_F32, large, 1, NULL, 0, &t) == NETCL_STATUS_MEMORY);
  CHECK(netcl_tensor_create(device, 17, shape, 1, NULL, 0, &t) == NETCL_STATUS_ARGUMENT);
}

static int three;
static int said(const char *text, void *user) {
  strncat(user, text, 400);
  return three && ++three > 3;
}

// `expected` is the text that follows the prompt, or NULL if it is unknown.
static void talks(const char *path, const char *expected) {
  netcl_model *model = NULL;
  netcl_model_info info;
  netcl_generated end;
  CHECK(!netcl_model_load(device, path, 0, &model) && !netcl_model_describe(model, &info));
  CHECK(info.vocab > 0 && info.layers > 0 && info.parameters > 1000 && info.context <= info.trained_context);
  char first[500] = "", second[500] = "", third[500] = "";
  netcl_generation greedy = {.max_tokens = 24};
  CHECK(!netcl_generate(model, "Once upon a time", &greedy, said, first, &end) && end.tokens > 0 && end.finish <= 2);
  CHECK(!netcl_generate(model, "Once upon a time", &greedy, said, second, NULL) && strcmp(first, second) == 0);
  if (expected) CHECK(strcmp(first, expected) == 0);
  printf("Once upon a time%s\n", first);
  netcl_generation drawn = {.max_tokens = 24, .temperature = 1, .seed = 5};
  three = 1;
  CHECK(netcl_generate(model, "Once", &drawn, said, third, &end) == NETCL_STATUS_STOPPED && end.finish == 4);
  CHECK(!netcl_model_free(model) && netcl_model_free(model) == NETCL_STATUS_HANDLE);
  CHECK(netcl_generate(model, "x", NULL, NULL, NULL, NULL) == NETCL_STATUS_HANDLE);
}

int main(int count, char **arguments) {
  char line[300];
  size_t length;
  CHECK(netcl_device_open("no such device", &device) == NETCL_STATUS_DEVICE && device == NULL);
  CHECK(!netcl_device_open(count > 1 ? arguments[1] : NULL, &device));
  CHECK(!netcl_device_describe(device, line, sizeof line, &length) && strlen(line) == length && length > 10);
  CHECK(netcl_device_describe(device, line, 3, NULL) == NETCL_STATUS_ARGUMENT);
  gradients(), operations();
  netcl_model *none = NULL;
  CHECK(netcl_model_load(device, "/no/such/model.gguf", 0, &none) != NETCL_STATUS_OK && none == NULL);
  if (count > 2) talks(arguments[2], count > 3 ? arguments[3] : NULL);
  CHECK(!netcl_device_finish(device) && !netcl_device_close(device) && netcl_device_close(device) == NETCL_STATUS_HANDLE);
  return finish("tensors");
}
