// Runs a kernel with a data race on the simulated GPU, which reports the race. Then it counts the work of a correct kernel.
#include <aethercl.h>
#include <stdio.h>
#include <stdlib.h>

static const char *TEXT =
    "__kernel void total(__global const int *x, __global int *sum) {\n"
    "  sum[0] += x[get_global_id(0)];\n"
    "}\n"
    "__kernel void total_atomic(__global const int *x, __global int *sum) {\n"
    "  atomic_add(sum, x[get_global_id(0)]);\n"
    "}\n";

static void must(netcl_status status) {
  if (status != NETCL_STATUS_OK) {
    fprintf(stderr, "%s\n", netcl_last_error());
    exit(1);
  }
}

int main(void) {
  enum { N = 64 };
  int x[N], sum = 0;
  for (int i = 0; i < N; i++) x[i] = i;
  aethercl_machine *gpu;
  aethercl_program *program;
  unsigned queue;
  uint64_t at_x, at_sum;
  const uint64_t global[3] = {N, 1, 1}, local[3] = {16, 1, 1};
  must(aethercl_open("teaching", &(aethercl_options){.checks = "all"}, &gpu));
  must(aethercl_build(TEXT, NULL, &program));
  must(aethercl_queue_open(gpu, &queue));
  must(aethercl_allocate(gpu, sizeof x, "x", &at_x));
  must(aethercl_allocate(gpu, sizeof sum, "sum", &at_sum));
  const aethercl_argument arguments[2] = {
      {AETHERCL_BUFFER_READ, at_x, sizeof x, NULL}, {AETHERCL_BUFFER, at_sum, sizeof sum, NULL}};
  for (int correct = 0; correct < 2; correct++) {
    const char *kernel = correct ? "total_atomic" : "total";
    aethercl_fence fence;
    size_t found;
    must(aethercl_write(gpu, queue, at_x, x, sizeof x, NULL));
    must(aethercl_fill(gpu, queue, at_sum, sizeof sum, &(int){0}, sizeof(int), NULL));
    must(aethercl_launch(gpu, queue, program, kernel, arguments, 2, global, local, NULL));
    must(aethercl_read(gpu, queue, at_sum, &sum, sizeof sum, NULL, NULL, &fence));
    must(aethercl_wait(gpu, fence, NULL));
    must(aethercl_finding_count(gpu, &found));
    printf("%s: sum %d, %zu findings\n", kernel, sum, found);
    if (found) {
      aethercl_finding finding;
      must(aethercl_finding_at(gpu, 0, &finding));
      printf("  %s in line %u\n", finding.kind, finding.line);
      must(aethercl_findings_clear(gpu));
    }
  }
  aethercl_counters counters;
  must(aethercl_counters_last(gpu, &counters));
  printf("%llu work-items, %llu bytes loaded\n", (unsigned long long)counters.items, (unsigned long long)counters.global_load_bytes);
  must(aethercl_program_free(program));
  must(aethercl_close(gpu));
  return 0;
}
