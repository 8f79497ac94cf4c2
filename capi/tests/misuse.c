// Makes ten thousand calls with invalid handles (freed, foreign, random), negative or too large sizes, and invalid indices. All must return
// error codes. Host pointers are NULL or large enough. Arguments: device, number of calls.
#include "check.h"

enum { ROOM = 4096, KEPT = 24 };

static void *handles[KEPT];
static unsigned char host[ROOM];
static aethercl_machine *gpu;
static aethercl_program *program;
static netcl_device *device;
static long fine, refused;

// Returns a handle of any kind: valid, freed or random.
static void *handle(void) {
  switch (random_word() % 8) {
    case 0: return (void *)(size_t)(random_word() << 7 ^ random_word());
    case 1: return NULL;
    case 2: return host;
    case 3: return (void *)((size_t)handles[random_word() % KEPT] ^ (size_t)1 << random_word() % 64);
    case 4: return (void *[]){gpu, program, device}[random_word() % 3];
    default: return handles[random_word() % KEPT];
  }
}

static int size(void) {
  switch (random_word() % 6) {
    case 0: return (int)random_word();
    case 1: return -(int)(random_word() % 100);
    default: return (int)(random_word() % 12);
  }
}

static size_t bytes(void) { return random_word() % 5 ? random_word() % (ROOM / 4) : (size_t)(random_word() << 11); }

static void keep(void *made) {
  if (made) handles[random_word() % KEPT] = made;
}

static int driver(unsigned which) {
  void *a = handle(), *b = handle(), *c = handle(), *d = handle(), *e = handle();
  int i = size(), j = size(), k = size(), l = size(), at = size();
  switch (which) {
    case 0: return execute_matmul_on_gpu(at, a, b, c, i, j, k, l);
    case 1: return execute_matmul_batched_on_gpu(at, a, b, c, i, j, k, l);
    case 2: return execute_softmax_on_gpu(at, a, b, i, j);
    case 3: return execute_gelu_on_gpu(at, a, b, i);
    case 4: return execute_add_on_gpu(at, a, b, c, i);
    case 5: return execute_mul_on_gpu(at, a, b, c, i);
    case 6: return execute_layernorm_on_gpu(at, a, b, i, j, 1e-5f);
    case 7: return execute_clone_on_gpu(at, a, b, bytes());
    case 8: return execute_transpose_on_gpu(at, a, b, i, j);
    case 9: return execute_embedding_lookup_gpu(at, a, b, c, i, j, k, l);
    case 10: return execute_broadcast_add_gpu(at, a, b, c, i, j, k);
    case 11: return execute_transpose_batched_gpu(at, a, b, i, j, k);
    case 12: return execute_transpose_12_batched_gpu(at, a, b, i, j, k, l);
    case 13: return execute_log_softmax_stable_gpu(at, a, b, i, j, k);
    case 14: return execute_add_broadcast_pe_gpu(at, a, b, c, i, j, k);
    case 15: return execute_gelu_backward_on_gpu(at, a, b, c, i);
    case 16: return execute_matmul_backward_on_gpu(at, a, b, c, d, e, i, j, k, l);
    case 17: return execute_layernorm_backward_on_gpu(at, a, b, c, i, j, 1e-5f);
    case 18: return execute_softmax_backward_on_gpu(at, a, b, c, i, j);
    case 19: return execute_mul_backward_on_gpu(at, a, b, c, d, e, i);
    case 20: return execute_transpose_backward_on_gpu(at, a, b, i, j);
    case 21: return execute_embedding_backward_gpu(at, a, b, c, i, j, k, l);
    case 22: return execute_reduce_sum_gpu(at, a, b, i, j, k);
    case 23: return execute_matmul_batched_backward_on_gpu(at, a, b, c, d, e, i, j, k, l);
    case 24: return execute_cross_entropy_loss_grad_gpu(at, a, b, c, d, i, j, k);
    case 25: return execute_adam_update_on_gpu(at, a, b, c, d, i, j, .1f, .9f, .9f, 1e-8f, 0);
    case 26: return write_host_to_gpu_blocking(at, a, bytes(), bytes() % ROOM, random_word() % 4 ? host : NULL);
    case 27: return read_gpu_to_host_blocking(at, a, bytes(), bytes() % ROOM, random_word() % 4 ? host : NULL);
    case 28: return free_gpu_memory(at, a), 0;
    default: return keep(allocate_gpu_memory(at, bytes())), 1;
  }
}

static uint64_t address(void) { return random_word() % 2 ? 0x10000 * (random_word() % 40) : random_word() << 5; }

static int machine(unsigned which) {
  aethercl_machine *m = random_word() % 4 ? gpu : handle();
  unsigned queue = (unsigned)random_word() % 3;
  uint64_t at = address(), sizes[3] = {random_word() % 70, random_word() % 3, 1}, out = 0;
  size_t count = 0;
  const char *names[] = {"twice", "none", NULL};
  aethercl_argument arguments[2] = {{(int)(random_word() % 4), at, bytes(), host}, {(int)(random_word() % 6) - 1, address(), random_word() % 64, NULL}};
  aethercl_fence fence = {queue, random_word() % 2 ? random_word() % 50 : random_word()};
  aethercl_finding finding;
  switch (which) {
    case 0: return !aethercl_allocate(m, bytes(), NULL, random_word() % 9 ? &out : NULL);
    case 1: return !aethercl_free(m, at);
    case 2: return !aethercl_write(m, queue, at, host, bytes() % ROOM, NULL);
    case 3: return !aethercl_copy(m, queue, at, address(), bytes(), NULL);
    case 4: return !aethercl_fill(m, queue, at, bytes(), host, random_word() % 20, NULL);
    case 5: return !aethercl_launch(m, queue, random_word() % 4 ? program : handle(), names[random_word() % 3], arguments, random_word() % 3, sizes, sizes, NULL);
    case 6: return !aethercl_doorbell(m, queue);
    case 7: return !aethercl_run(m);
    case 8: return !aethercl_wait(m, fence, NULL);
    case 9: return !aethercl_finding_at(m, random_word() % 4, &finding);
    case 10: return !aethercl_register_write(m, (unsigned)random_word() % 0x400 & ~3u, (unsigned)random_word());
    case 11: return !aethercl_pin(m, NULL, bytes() % ROOM, &out) & !aethercl_unpin(m, random_word() % 2 ? out : at, host, random_word() % 9);
    case 12: return simulated_kernel_write(0, at, bytes() % ROOM, host), 0;
    case 13: return simulated_kernel_read(0, at, bytes() % ROOM, host);
    case 14: return !aethercl_finding_count(m, random_word() % 2 ? &count : NULL);
    default: return simulated_kernel_allocate(0, bytes()) != 0;
  }
}

static int tensors(unsigned which) {
  netcl_tensor *a = handle(), *inputs[3] = {handle(), handle(), handle()}, *out[2] = {NULL, NULL};
  const char *name = netcl_op_name(random_word() % (netcl_op_count() + 1));
  size_t shape[3] = {random_word() % 5, bytes(), random_word() % 3}, rank;
  int dtype, ok;
  netcl_attribute attributes[2] = {
      {random_word() % 2 ? "axis" : "k", (int)(random_word() % 8), size(), 0.5, "silu", (const int64_t[]){size(), size()}, random_word() % 3},
      {"shape", (int)(random_word() % 8), size(), -1, "x", (const int64_t[]){size(), size()}, random_word() % 3}};
  switch (which) {
    case 0: ok = !netcl_tensor_create(random_word() % 3 ? device : handle(), (int)(random_word() % 7) - 1, shape, random_word() % 4, random_word() % 2 ? NULL : host, bytes() % ROOM, out); break;
    case 1: return !netcl_tensor_free(a);
    case 2: ok = !netcl_tensor_clone(a, out); break;
    case 3: return !netcl_tensor_shape(a, shape, random_word() % 4, &rank);
    case 4: return !netcl_tensor_dtype(a, random_word() % 2 ? &dtype : NULL);
    case 5: return !netcl_tensor_read(a, host, bytes() % ROOM);
    case 6: return !netcl_tensor_write(a, host, bytes() % ROOM);
    case 7: ok = !netcl_tensor_grad(a, out); break;
    case 8: return !netcl_backward(a, random_word() % 2 ? NULL : handle());
    case 9: ok = !netcl_tensor_parameter(a, random_word() % 3 ? "p" : NULL, out); break;
    default: ok = !netcl_op(name, inputs, random_word() % 4, attributes, random_word() % 3, out, random_word() % 3, &rank);
  }
  keep(out[0]), keep(out[1]);
  return ok;
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : "auto";
  long calls = count > 2 ? atol(arguments[2]) : 10000;
  CHECK(!netcl_driver_device(0, name) && initialize_gpu(0) == 1 && !netcl_device_open(name, &device));
  CHECK(!aethercl_open(NULL, &(aethercl_options){.checks = "all"}, &gpu) && !aethercl_queue_open(gpu, NULL));
  CHECK(!aethercl_build("__kernel void twice(__global float *x, __global float *y) { y[get_global_id(0)] = 2 * x[get_global_id(0)]; }", NULL, &program));
  for (long i = 0; i < calls; i++) {
    int done = i % 3 == 0 ? driver((unsigned)random_word() % 31) : i % 3 == 1 ? machine((unsigned)random_word() % 16) : tensors((unsigned)random_word() % 14);
    if (done) fine++; else refused++;
  }
  printf("%ld calls: %ld succeeded, %ld were rejected\n", calls, fine, refused);
  CHECK(refused > calls / 4 && fine > calls / 50);
  for (int i = 0; i < KEPT; i++) free_gpu_memory(0, handles[i]), netcl_tensor_free(handles[i]);
  netcl_device_close(device), aethercl_close(gpu), aethercl_program_free(program);
  netcl_simulated_shutdown(), shutdown_driver();
  return finish("misuse");
}
