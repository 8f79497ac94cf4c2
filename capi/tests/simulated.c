// The simulated GPU by addresses: a product with its result read through a callback, the trace, commands, and errors.
#include "check.h"
#include <stdatomic.h>

static atomic_int lines, called;

static void hear(const char *line, void *user) {
  (void)user;
  if (strstr(line, "doorbell")) atomic_fetch_add(&lines, 1);
}

static void done(netcl_status status, void *user) {
  CHECK(status == NETCL_STATUS_OK && *(int *)user == 42);
  atomic_fetch_add(&called, 1);
}

int main(void) {
  enum { M = 5, K = 4, N = 6 };
  double a[M * K], b[K * N], c[M * N], expected[M * N] = {0};
  for (int i = 0; i < M * K; i++) a[i] = random_float();
  for (int i = 0; i < K * N; i++) b[i] = random_float();
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < K; k++) expected[i * N + j] += a[i * K + k] * b[k * N + j];
  CHECK(netcl_simulated_set_log(2, hear, NULL) == NETCL_STATUS_OK);
  unsigned long long at_a = simulated_kernel_allocate(0, sizeof a), at_b = simulated_kernel_allocate(0, sizeof b);
  CHECK(at_a && at_b && at_a != at_b);
  simulated_kernel_write(0, at_a, sizeof a, a);
  simulated_kernel_write(0, at_b, sizeof b, b);
  const int of_a[2] = {M, K}, of_b[2] = {K, N};
  unsigned long long at_c = simulated_matrix_multiply(0, at_a, at_b, sizeof a, sizeof b, of_a, of_b);
  CHECK(at_c);
  CHECK(atomic_load(&lines) >= 3);
  CHECK(simulated_kernel_read(0, at_c, sizeof c, c) == 1);
  for (int i = 0; i < M * N; i++) CHECK(fabs(c[i] - expected[i]) < 1e-14);
  // Start several asynchronous read-backs at a time.
  int user = 42;
  double later[4][M * N];
  for (int i = 0; i < 4; i++) CHECK(netcl_simulated_read_async(0, at_c, sizeof c, later[i], done, &user) == 1);
  netcl_simulated_finish(0);
  CHECK(atomic_load(&called) == 4);
  for (int i = 0; i < 4; i++) CHECK(memcmp(later[i], c, sizeof c) == 0);
  // Commands: a product of floats, a copy, a fill.
  float f[4] = {1, 2, 3, 4}, g[4];
  unsigned long long at_f = simulated_kernel_allocate(0, 16), at_g = simulated_kernel_allocate(0, 16);
  simulated_kernel_write(0, at_f, 16, f);
  netcl_simulated_command product = {.operation = NETCL_SIMULATED_MATRIX_MULTIPLY, .element = 4, .a = at_f, .b = at_f, .c = at_g, .m = 2, .n = 2, .k = 2};
  CHECK(submit_command(0, &product) == 1 && simulated_kernel_read(0, at_g, 16, g) == 1);
  CHECK(g[0] == 7 && g[1] == 10 && g[2] == 15 && g[3] == 22);
  netcl_simulated_command copy = {.operation = NETCL_SIMULATED_COPY, .a = at_f, .c = at_g, .bytes = 16};
  CHECK(submit_command(0, &copy) == 1 && simulated_kernel_read(0, at_g, 16, g) == 1 && memcmp(f, g, 16) == 0);
  netcl_simulated_command fill = {.operation = NETCL_SIMULATED_FILL, .element = 0, .c = at_g, .bytes = 8};
  CHECK(submit_command(0, &fill) == 1 && simulated_kernel_read(0, at_g, 16, g) == 1 && g[0] == 0 && g[1] == 0 && g[2] == 3);
  // Pass invalid arguments.
  CHECK(simulated_matrix_multiply(0, at_a, at_b, sizeof a, sizeof b, of_b, of_a) == 0);
  CHECK(simulated_matrix_multiply(0, at_a, 12345, sizeof a, sizeof b, of_a, of_b) == 0);
  product.m = 1ull << 40;
  CHECK(submit_command(0, &product) == 0);
  product.operation = 9;
  CHECK(submit_command(0, &product) == 0 && submit_command(0, NULL) == 0);
  CHECK(simulated_kernel_read(0, at_c, 1 << 20, c) == 0);
  CHECK(netcl_simulated_read_async(0, at_c + 8, sizeof c, c, done, &user) == 0);
  CHECK(simulated_kernel_allocate(0, (size_t)1 << 60) == 0);
  simulated_kernel_free(0, at_c, sizeof c);
  CHECK(simulated_kernel_read(0, at_c, 8, c) == 0);
  simulated_kernel_free(0, at_c, sizeof c);
  CHECK(strstr(netcl_last_error(), "simulated_kernel_free"));
  netcl_simulated_shutdown();
  CHECK(simulated_kernel_read(0, at_a, 8, c) == 0);
  netcl_simulated_shutdown();
  return finish("simulated");
}
