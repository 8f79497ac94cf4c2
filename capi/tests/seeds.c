// The promises of the first seed's C driver, one function per row of docs/book/seeds.md. Rows 40 and 42 are in programs.rs, because they compile
// programs. The first argument is the device [default: auto].
#include "check.h"
#include <stdint.h>
#include <time.h>

enum { ANY = 7 }; // a GPU index that no call initializes

static const char *device = "auto";

static void *put(const void *data, size_t bytes) {
  void *buffer = allocate_gpu_memory(0, bytes);
  CHECK(buffer && write_host_to_gpu_blocking(0, buffer, 0, bytes, data) == 1);
  return buffer;
}

static void *room(size_t floats) {
  void *buffer = allocate_gpu_memory(0, floats * sizeof(float));
  CHECK(buffer);
  return buffer;
}

// Compares the first n floats of a buffer with the expected numbers. Returns 1 if they are near.
static int holds(void *buffer, const float *expected, size_t n) {
  float *found = calloc(n, sizeof *found);
  int near = read_gpu_to_host_blocking(0, buffer, 0, n * sizeof *found, found);
  for (size_t i = 0; i < n; i++) near = near && fabsf(found[i] - expected[i]) <= 1e-5f * (1 + fabsf(expected[i]));
  free(found);
  return near;
}

#define PUT(name, ...)                \
  const float name##_[] = {__VA_ARGS__}; \
  void *name = put(name##_, sizeof name##_)
#define HOLDS(buffer, ...) holds(buffer, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))
#define FREE(...)                                                                                    \
  for (void **at = (void *[]){__VA_ARGS__, NULL}; *at; at++) free_gpu_memory(0, *at)

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void row_001(void) {
  int (*initialize)(int) = initialize_gpu;
  CHECK(initialize(0) == 1 && initialize(0) == 1);
}

static void described(int gpu, char *text, size_t room) { CHECK(netcl_driver_describe(gpu, text, room, NULL) == NETCL_STATUS_OK); }

static void row_002(void) {
  char first[400], other[400];
  described(0, first, sizeof first);
  for (int i = 0; i < 3; i++) {
    const int invalid = (int[]){99, -1, 2147483647}[i];
    CHECK(initialize_gpu(invalid) == 1);
    described(invalid, other, sizeof other);
    CHECK(strcmp(first, other) == 0);
  }
}

static void row_003(void) {
  char text[400] = "";
  size_t length = 0;
  double best = INFINITY, work = INFINITY;
  // Prints the best of three starts. A warm start loads all kernels from the cache; a test does not assert times.
  for (int i = 0; i < 3; i++) {
    shutdown_driver();
    const double start = seconds();
    const clock_t before = clock();
    CHECK(initialize_gpu(0) == 1);
    best = fmin(best, seconds() - start), work = fmin(work, (double)(clock() - before) / CLOCKS_PER_SEC);
  }
  CHECK(netcl_driver_describe(0, NULL, 0, &length) == NETCL_STATUS_OK && length > 0 && length < sizeof text);
  CHECK(netcl_driver_describe(0, text, length, NULL) == NETCL_STATUS_ARGUMENT);
  described(0, text, sizeof text);
  CHECK(strlen(text) == length && strstr(text, "26 functions checked"));
  CHECK(strstr(text, netcl_driver_has_fp64(0) ? "FP64: yes" : "FP64: no"));
  CHECK(strstr(text, netcl_driver_has_atomics(0) ? "atomics: yes" : "atomics: no"));
  printf("%s\nwarm initialize_gpu: %.3f s, processor time %.3f s\n", text, best, work);
  CHECK(strstr(text, " 0 compiled"));
}

static void row_004(void) {
  void *buffer = room(4);
  float x;
  shutdown_driver();
  CHECK(read_gpu_to_host_blocking(0, buffer, 0, 4, &x) == 0 && allocate_gpu_memory(0, 16) == NULL);
  CHECK(strstr(netcl_last_error(), "initialize_gpu"));
  shutdown_driver();
  CHECK(initialize_gpu(0) == 1);
}

static void row_005(void) {
  void *buffer = allocate_gpu_memory(0, 1);
  CHECK(buffer && allocate_gpu_memory(0, 0) == NULL && allocate_gpu_memory(0, (size_t)1 << 62) == NULL);
  free_gpu_memory(0, buffer);
}

static void row_006(void) {
  const float x[2] = {1, 2};
  float back[2] = {0};
  void *a = allocate_gpu_memory(ANY, sizeof x), *b = allocate_gpu_memory(-ANY, sizeof x);
  CHECK(write_host_to_gpu_blocking(ANY, a, 0, sizeof x, x) == 1 && execute_add_on_gpu(-ANY, a, a, b, 2) == 1);
  CHECK(read_gpu_to_host_blocking(ANY, b, 0, sizeof x, back) == 1 && back[0] == 2 && back[1] == 4);
  free_gpu_memory(-ANY, a), free_gpu_memory(ANY, b);
}

static void row_007(void) {
  CHECK(execute_add_on_gpu(0, NULL, NULL, NULL, 1) == 0);
  free_gpu_memory(0, NULL);
  CHECK(strstr(netcl_last_error(), "execute_add_on_gpu")); // NULL was ignored
  void *buffer = room(1);
  free_gpu_memory(0, buffer), free_gpu_memory(0, buffer);
  CHECK(strstr(netcl_last_error(), "free_gpu_memory") && strstr(netcl_last_error(), "was freed"));
}

static void row_008(void) {
  PUT(x, 1, 2, 3);
  CHECK(write_host_to_gpu_blocking(0, x, 8, 4, &(float){9}) == 1 && HOLDS(x, 1, 2, 9));
  CHECK(write_host_to_gpu_blocking(0, x, 12, 0, NULL) == 1);
  CHECK(write_host_to_gpu_blocking(0, x, 9, 4, x_) == 0 && write_host_to_gpu_blocking(0, x, SIZE_MAX, 4, x_) == 0);
  FREE(x);
}

static void row_009(void) {
  PUT(x, 1, 2, 3);
  float back[2] = {0};
  CHECK(read_gpu_to_host_blocking(0, x, 4, 8, back) == 1 && back[0] == 2 && back[1] == 3);
  CHECK(read_gpu_to_host_blocking(0, x, 8, 8, back) == 0 && read_gpu_to_host_blocking(0, x, 0, 4, NULL) == 0);
  FREE(x);
}

static void row_010(void) {
  PUT(a, 1, 2, 3, 4, 5, 6, -1, 0, 1, 2, 0, 0);
  PUT(b, 1, 0, 0, 1, 1, 1);
  void *c = room(8);
  CHECK(execute_matmul_on_gpu(0, a, b, c, 2, 2, 2, 3) == 1 && HOLDS(c, 4, 5, 10, 11, 0, 1, 2, 0));
  CHECK(execute_matmul_on_gpu(0, a, b, c, 1, 4, 2, 3) == 1 && HOLDS(c, 4, 5, 10, 11, 0, 1, 2, 0));
  FREE(a, b, c);
}

static void row_011(void) {
  PUT(x, 0, 0, 1000, 1000, -1000, 0);
  void *y = room(6);
  CHECK(execute_softmax_on_gpu(0, x, y, 3, 2) == 1 && HOLDS(y, 0.5f, 0.5f, 0.5f, 0.5f, 0, 1));
  FREE(x, y);
}

static void row_012(void) {
  PUT(x, -1, 0, 2, 10);
  void *y = room(4);
  CHECK(execute_gelu_on_gpu(0, x, y, 4) == 1);
  CHECK(HOLDS(y, (float)(-0.5 * erfc(sqrt(0.5))), 0, (float)(1 + erf(sqrt(2))), 10));
  FREE(x, y);
}

static void row_013(void) {
  PUT(a, 1, 2, 3);
  PUT(b, 10, -2, 0.5f);
  CHECK(execute_add_on_gpu(0, a, b, a, 3) == 1 && HOLDS(a, 11, 0, 3.5f));
  FREE(a, b);
}

static void row_014(void) {
  PUT(a, 1, 2, 3);
  PUT(b, 10, -2, 0.5f);
  void *c = room(3);
  CHECK(execute_mul_on_gpu(0, a, b, c, 3) == 1 && HOLDS(c, 10, -4, 1.5f));
  FREE(a, b, c);
}

static void row_015(void) {
  PUT(x, 1, 3, 0, 0);
  void *y = room(4);
  CHECK(execute_layernorm_on_gpu(0, x, y, 2, 2, 3.0f) == 1 && HOLDS(y, -0.5f, 0.5f, 0, 0)); // the variance 1 plus eps 3
  FREE(x, y);
}

static void row_016(void) {
  PUT(x, 1, 2, 3);
  PUT(y, 7, 8, 9);
  CHECK(execute_clone_on_gpu(0, x, y, 8) == 1 && HOLDS(y, 1, 2, 9) && execute_clone_on_gpu(0, x, y, 16) == 0);
  FREE(x, y);
}

static void row_017(void) {
  PUT(x, 1, 2, 3, 4, 5, 6);
  void *y = room(6);
  CHECK(execute_transpose_on_gpu(0, x, y, 2, 3) == 1 && HOLDS(y, 1, 4, 2, 5, 3, 6));
  FREE(x, y);
}

static void row_018(void) {
  const int ids[6] = {1, 0, -1, 2, -100, 2147483647};
  PUT(w, 1, 2, 3, 4);
  void *indices = put(ids, sizeof ids), *o = room(12);
  CHECK(execute_embedding_lookup_gpu(0, indices, w, o, 2, 3, 2, 2) == 1 && HOLDS(o, 3, 4, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0));
  FREE(w, indices, o);
}

static void row_019(void) {
  PUT(a, 1, 2, 3, 4);
  PUT(bias, 10, 20);
  void *c = room(4);
  CHECK(execute_broadcast_add_gpu(0, a, bias, c, 1, 2, 2) == 1 && HOLDS(c, 11, 22, 13, 24));
  FREE(a, bias, c);
}

static void row_020(void) {
  PUT(x, 1, 2, 3, 4, 5, 6, 7, 8);
  void *y = room(8);
  CHECK(execute_transpose_batched_gpu(0, x, y, 2, 2, 2) == 1 && HOLDS(y, 1, 3, 2, 4, 5, 7, 6, 8));
  FREE(x, y);
}

static void row_021(void) {
  PUT(x, 1, 2, 3, 4, 5, 6, 7, 8);
  void *y = room(8);
  CHECK(execute_transpose_12_batched_gpu(0, x, y, 1, 2, 2, 2) == 1 && HOLDS(y, 1, 2, 5, 6, 3, 4, 7, 8));
  FREE(x, y);
}

static void row_022(void) {
  PUT(a, 1, 2, 3, 4);
  PUT(b, 10, 1, 2, 3);
  void *c = room(2);
  CHECK(execute_matmul_batched_on_gpu(0, a, b, c, 2, 1, 1, 2) == 1 && HOLDS(c, 12, 18));
  FREE(a, b, c);
}

static void row_023(void) {
  PUT(x, 0, 0, 1000, 0);
  void *y = room(4);
  CHECK(execute_log_softmax_stable_gpu(0, x, y, 1, 2, 2) == 1 && HOLDS(y, (float)-log(2), (float)-log(2), 0, -1000));
  FREE(x, y);
}

static void row_024(void) {
  PUT(x, 1, 2, 3, 4);
  PUT(pe, 10, 20);
  void *y = room(4);
  CHECK(execute_add_broadcast_pe_gpu(0, x, pe, y, 2, 1, 2) == 1 && HOLDS(y, 11, 22, 13, 24));
  CHECK(execute_add_broadcast_pe_gpu(0, x, x, y, 1, 2, 2) == 1 && HOLDS(y, 2, 4, 6, 8));
  FREE(x, pe, y);
}

static void row_025(void) {
  PUT(x, 0, 1);
  PUT(dy, 4, 1);
  void *dx = room(2);
  const double density = exp(-0.5) / sqrt(2 * M_PI), distribution = 0.5 * (1 + erf(sqrt(0.5)));
  CHECK(execute_gelu_backward_on_gpu(0, x, dy, dx, 2) == 1 && HOLDS(dx, 2, (float)(distribution + density)));
  FREE(x, dy, dx);
}

static void row_026(void) {
  PUT(a, 1, 2, 3, 4);
  PUT(b, 5, 6);
  PUT(dc, 1, -1);
  void *da = room(4), *db = room(2);
  CHECK(execute_matmul_backward_on_gpu(0, a, b, dc, da, NULL, 2, 1, 1, 2) == 1 && HOLDS(da, 5, 6, -5, -6));
  CHECK(execute_matmul_backward_on_gpu(0, a, b, dc, NULL, db, 2, 1, 1, 2) == 1 && HOLDS(db, -2, -2));
  CHECK(execute_matmul_backward_on_gpu(0, a, b, dc, NULL, NULL, 2, 1, 1, 2) == 1);
  FREE(a, b, dc, da, db);
}

static void row_027(void) {
  PUT(dy, 1, 0, 0, 0);
  PUT(x, 1, 1, 3, 3);
  void *dx = room(4);
  CHECK(execute_layernorm_backward_on_gpu(0, dy, x, dx, 1, 4, 0.0f) == 1 && HOLDS(dx, 0.5f, -0.5f, 0, 0));
  FREE(dy, x, dx);
}

static void row_028(void) {
  PUT(dy, 1, 0);
  PUT(y, 0.25f, 0.75f);
  void *dx = room(2);
  CHECK(execute_softmax_backward_on_gpu(0, dy, y, dx, 1, 2) == 1 && HOLDS(dx, 0.1875f, -0.1875f));
  FREE(dy, y, dx);
}

static void row_029(void) {
  PUT(dc, 1, 2);
  PUT(a, 3, 4);
  PUT(b, 5, 6);
  void *da = room(2), *db = room(2);
  CHECK(execute_mul_backward_on_gpu(0, dc, a, b, da, NULL, 2) == 1 && HOLDS(da, 5, 12));
  CHECK(execute_mul_backward_on_gpu(0, dc, a, b, NULL, db, 2) == 1 && HOLDS(db, 3, 8));
  FREE(dc, a, b, da, db);
}

static void row_030(void) {
  PUT(dc, 1, 4, 2, 5, 3, 6);
  void *da = room(6);
  CHECK(execute_transpose_backward_on_gpu(0, dc, da, 2, 3) == 1 && HOLDS(da, 1, 2, 3, 4, 5, 6));
  FREE(dc, da);
}

static void row_031(void) {
  const int ids[4] = {1, 1, -1, 9};
  PUT(dy, 1, 2, 3, 4, 50, 50, 50, 50);
  PUT(dw, 100, 100, 10, 10);
  void *indices = put(ids, sizeof ids);
  CHECK(execute_embedding_backward_gpu(0, dy, indices, dw, 1, 4, 2, 2) == 1 && HOLDS(dw, 100, 100, 14, 16));
  FREE(dy, dw, indices);
}

static void row_032(void) {
  PUT(x, 1, 2, 3, 4, 5, 6, 7, 8);
  void *y = room(2);
  CHECK(execute_reduce_sum_gpu(0, x, y, 2, 2, 2) == 1 && HOLDS(y, 16, 20));
  FREE(x, y);
}

static void row_033(void) {
  PUT(a, 1, 2, 3, 4);
  PUT(b, 5, 6, 7, 8);
  PUT(dc, 1, -1);
  void *da = room(4), *db = room(4);
  CHECK(execute_matmul_batched_backward_on_gpu(0, a, b, dc, da, NULL, 2, 1, 1, 2) == 1 && HOLDS(da, 5, 6, -7, -8));
  CHECK(execute_matmul_batched_backward_on_gpu(0, a, b, dc, NULL, db, 2, 1, 1, 2) == 1 && HOLDS(db, 1, 2, -3, -4));
  FREE(a, b, dc, da, db);
}

static void row_034(void) {
  const int targets[4] = {1, -1, 2, -100};
  const float half = (float)-log(2);
  PUT(logs, half, half, half, half, half, half, half, half);
  void *indices = put(targets, sizeof targets), *grad = room(8), *loss = room(4);
  CHECK(execute_cross_entropy_loss_grad_gpu(0, logs, indices, grad, loss, 2, 2, 2) == 1);
  CHECK(HOLDS(grad, 0.5f, -0.5f, 0, 0, 0, 0, 0, 0) && HOLDS(loss, -half, 0, 0, 0));
  FREE(logs, indices, grad, loss);
}

static void row_035(void) {
  PUT(p, 2);
  PUT(g, 1);
  PUT(m, 0);
  PUT(v, 0);
  double q = 2, first = 0, second = 0;
  for (int t = 1; t <= 3; t++) {
    CHECK(execute_adam_update_on_gpu(0, p, g, m, v, 1, t, 0.1f, 0.9f, 0.99f, 1e-8f, 0.5f) == 1);
    const double decayed = 1 + 0.5 * q; // the decay is a part of the gradient
    first = 0.9 * first + 0.1 * decayed, second = 0.99 * second + 0.01 * decayed * decayed;
    q -= 0.1 * (first / (1 - pow(0.9, t))) / (sqrt(second / (1 - pow(0.99, t))) + 1e-8);
  }
  CHECK(HOLDS(p, (float)q) && HOLDS(m, (float)first) && HOLDS(v, (float)second));
  FREE(p, g, m, v);
}

static double *host(unsigned long long address) { return (double *)(uintptr_t)address; }

static void row_036(void) {
  const int of_a[2] = {1, 2}, of_b[2] = {2, 1};
  for (int i = 1; i <= 40; i++) {
    const unsigned long long any = simulated_kernel_allocate(ANY, (size_t)i);
    CHECK(any && any % 16 == 0); // the alignment of malloc
    memset((void *)(uintptr_t)any, i, (size_t)i);
    simulated_kernel_free(0, any, 0);
  }
  const unsigned long long a = simulated_kernel_allocate(0, 16), b = simulated_kernel_allocate(0, 16), copy = simulated_kernel_allocate(0, 16);
  // The GPU sees what the program wrote, also after commands have used the memory.
  for (int turn = 0; turn < 3; turn++) {
    host(a)[0] = 1 + turn, host(a)[1] = 2, host(b)[0] = 10, host(b)[1] = 100;
    const unsigned long long c = simulated_matrix_multiply(0, a, b, 16, 16, of_a, of_b);
    CHECK(c && host(c)[0] == 210 + 10 * turn); // the program sees the result without a read
    const netcl_simulated_command command = {.operation = NETCL_SIMULATED_COPY, .a = a + 8, .c = copy, .bytes = 8};
    host(a)[1] = -turn;
    CHECK(submit_command(0, &command) == 1 && host(copy)[0] == -turn);
    simulated_kernel_free(0, c, 8);
  }
  CHECK(simulated_kernel_allocate(0, 0) == 0 && simulated_kernel_allocate(0, (size_t)1 << 60) == 0);
  simulated_kernel_free(0, a, 16), simulated_kernel_free(0, b, 16), simulated_kernel_free(0, copy, 16);
}

static void row_037(void) {
  double x;
  const unsigned long long a = simulated_kernel_allocate(0, 8);
  simulated_kernel_free(ANY, a, 12345); // index and size are ignored
  CHECK(simulated_kernel_read(0, a, 8, &x) == 0 && strstr(netcl_last_error(), "it was freed"));
  simulated_kernel_free(0, a, 8);
  CHECK(strstr(netcl_last_error(), "simulated_kernel_free"));
}

static void row_038(void) {
  const double x[3] = {1, 2, 3};
  double back[2] = {0};
  const unsigned long long a = simulated_kernel_allocate(0, sizeof x);
  simulated_kernel_write(ANY, a, sizeof x, x);
  CHECK(memcmp(host(a), x, sizeof x) == 0);
  simulated_kernel_write(0, a + 8, 8, &x[2]); // an address within the allocation
  CHECK(host(a)[0] == 1 && host(a)[1] == 3 && simulated_kernel_read(0, a + 8, 16, back) == 1 && back[0] == 3 && back[1] == 3);
  simulated_kernel_write(0, a + 16, 16, x);
  CHECK(strstr(netcl_last_error(), "offset 16 of") && host(a)[2] == 3);
  simulated_kernel_free(0, a, sizeof x);
}

static void row_039(void) {
  CHECK(simulated_get_compute_unit_count(0) > 0);
  shutdown_driver();
  CHECK(simulated_get_compute_unit_count(0) == 16);
  CHECK(initialize_gpu(0) == 1);
}

static void row_041(void) {
  PUT(x, 1, 2, 3, 4);
  void *gone = room(4), *garbage[4] = {NULL, (void *)(size_t)12345, &failures, gone};
  free_gpu_memory(0, gone);
  for (int i = 0; i < 4; i++) {
    void *bad = garbage[i];
    CHECK(!execute_add_on_gpu(0, bad, x, x, 4) && !execute_add_on_gpu(0, x, bad, x, 4) && !execute_add_on_gpu(0, x, x, bad, 4));
    CHECK(!execute_matmul_on_gpu(0, bad, x, x, 1, 2, 2, 2) && !execute_softmax_on_gpu(0, x, bad, 2, 2));
    CHECK(!execute_clone_on_gpu(0, bad, x, 4) && !execute_transpose_on_gpu(0, bad, x, 2, 2) && !execute_reduce_sum_gpu(0, x, bad, 1, 2, 2));
    CHECK(!execute_adam_update_on_gpu(0, x, bad, x, x, 4, 1, 1, 0, 0, 1, 0) && !execute_embedding_lookup_gpu(0, bad, x, x, 1, 1, 1, 1));
    CHECK(!write_host_to_gpu_blocking(0, bad, 0, 4, x_) && !read_gpu_to_host_blocking(0, bad, 0, 4, (float[1]){0}));
  }
  CHECK(!execute_add_on_gpu(0, x, x, x, -1) && !execute_add_on_gpu(0, x, x, x, 5) && !execute_softmax_on_gpu(0, x, x, 2147483647, 2147483647));
  CHECK(HOLDS(x, 1, 2, 3, 4));
  FREE(x);
}

#define ROW(number) {#number, row_##number}

int main(int count, char **arguments) {
  if (count > 1) device = arguments[1];
  CHECK(netcl_driver_device(0, device) == NETCL_STATUS_OK);
  const struct {
    const char *number;
    void (*run)(void);
  } rows[] = {ROW(001), ROW(002), ROW(003), ROW(004), ROW(005), ROW(006), ROW(007), ROW(008), ROW(009), ROW(010), ROW(011), ROW(012), ROW(013), ROW(014),
              ROW(015), ROW(016), ROW(017), ROW(018), ROW(019), ROW(020), ROW(021), ROW(022), ROW(023), ROW(024), ROW(025), ROW(026), ROW(027), ROW(028),
              ROW(029), ROW(030), ROW(031), ROW(032), ROW(033), ROW(034), ROW(035), ROW(036), ROW(037), ROW(038), ROW(039), ROW(041)};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const int before = failures;
    rows[i].run();
    if (failures > before) fprintf(stderr, "row_%s: FAILED\n", rows[i].number);
  }
  shutdown_driver(), netcl_simulated_shutdown();
  return finish("seeds");
}
