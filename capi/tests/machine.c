// AetherCL: queues and kernels through functions, findings and counters, and a program that uses only the register window.
#include "check.h"

static const char *TEXT =
    "__kernel void twice(__global const float *x, __global float *y) { size_t i = get_global_id(0); y[i] = 2.0f * x[i]; }\n"
    "__kernel void race(__global int *y) { y[0] = get_global_id(0); }\n"
    "__kernel void told(int n) { if (get_global_id(0) == 0) printf(\"n is %d\\n\", n); }\n";

static void came(netcl_status status, void *user) { *(int *)user = status == NETCL_STATUS_OK ? 1 : -1; }

// Reads a word of the window.
static unsigned get(aethercl_mmio w, unsigned at) { return __atomic_load_n(w.registers + at / 4, __ATOMIC_ACQUIRE); }
static void set(aethercl_mmio w, unsigned at, unsigned value) { __atomic_store_n(w.registers + at / 4, value, __ATOMIC_RELEASE); }

static void functions(aethercl_machine *gpu, aethercl_program *program) {
  enum { N = 256 };
  float x[N], y[N];
  for (int i = 0; i < N; i++) x[i] = (float)i;
  uint64_t at_x, at_y, used, capacity;
  unsigned queue;
  CHECK(!aethercl_queue_open(gpu, &queue) && queue == 0);
  CHECK(!aethercl_allocate(gpu, sizeof x, "x", &at_x) && !aethercl_allocate(gpu, sizeof y, NULL, &at_y));
  CHECK(!aethercl_memory(gpu, &used, NULL, &capacity) && used >= 2 * sizeof x && used <= capacity);
  const uint64_t global[3] = {N, 1, 1}, local[3] = {64, 1, 1};
  aethercl_argument arguments[2] = {{AETHERCL_BUFFER_READ, at_x, sizeof x, NULL}, {AETHERCL_BUFFER, at_y, sizeof y, NULL}};
  aethercl_fence fence;
  aethercl_times times;
  int arrived = 0;
  CHECK(!aethercl_write(gpu, queue, at_x, x, sizeof x, NULL));
  CHECK(!aethercl_launch(gpu, queue, program, "twice", arguments, 2, global, local, NULL));
  CHECK(!aethercl_read(gpu, queue, at_y, y, sizeof y, came, &arrived, &fence));
  CHECK(arrived == 0 && fence.value == 3); // the doorbell has not been rung
  CHECK(!aethercl_doorbell(gpu, queue) && !aethercl_wait(gpu, fence, &times));
  CHECK(arrived == 1 && times.start_ns < times.end_ns && times.queued_ns <= times.start_ns);
  for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
  aethercl_counters counters;
  CHECK(!aethercl_counters_last(gpu, &counters) && counters.items == N && counters.groups == 4 && counters.ns > 0);
  CHECK(counters.global_load_bytes == sizeof x && counters.global_store_bytes == sizeof y && counters.bound[0]);
  // The checks report a race with its line.
  size_t found = 9, length;
  aethercl_finding finding;
  CHECK(!aethercl_finding_count(gpu, &found) && found == 0);
  aethercl_argument one = {AETHERCL_BUFFER, at_y, 4, NULL};
  CHECK(!aethercl_launch(gpu, queue, program, "race", &one, 1, global, local, &fence) && !aethercl_wait(gpu, fence, NULL));
  CHECK(!aethercl_finding_count(gpu, &found) && found > 0);
  CHECK(!aethercl_finding_at(gpu, 0, &finding) && finding.line == 2 && strstr(finding.kind, "race") && strstr(finding.text, "^"));
  CHECK(aethercl_finding_at(gpu, found, &finding) == NETCL_STATUS_ARGUMENT);
  CHECK(!aethercl_findings_clear(gpu) && !aethercl_finding_count(gpu, &found) && found == 0);
  // printf formats a kernel argument.
  int n = 7;
  char printed[64];
  aethercl_argument number = {AETHERCL_VALUE, 0, sizeof n, &n};
  CHECK(!aethercl_launch(gpu, queue, program, "told", &number, 1, global, local, &fence) && !aethercl_wait(gpu, fence, NULL));
  CHECK(!aethercl_printed(gpu, printed, sizeof printed, &length) && strcmp(printed, "n is 7\n") == 0 && length == 7);
  // One queue waits for another one.
  unsigned other;
  aethercl_fence filled;
  const float three = 3;
  CHECK(!aethercl_queue_open(gpu, &other));
  CHECK(!aethercl_fill(gpu, queue, at_x, sizeof x, &three, 4, &filled) && !aethercl_wait_for(gpu, other, filled, NULL));
  CHECK(!aethercl_copy(gpu, other, at_y, at_x, sizeof x, NULL) && !aethercl_read(gpu, other, at_y, y, sizeof y, NULL, NULL, &fence));
  CHECK(!aethercl_doorbell(gpu, other) && aethercl_run(gpu) == NETCL_STATUS_LAUNCH); // the first queue has not rung
  CHECK(!aethercl_doorbell(gpu, queue) && !aethercl_wait(gpu, fence, NULL) && y[0] == 3 && y[N - 1] == 3);
  // Pass invalid arguments.
  CHECK(aethercl_launch(gpu, queue, program, "none", arguments, 2, global, local, NULL) == NETCL_STATUS_ARGUMENT);
  CHECK(aethercl_read(gpu, queue, at_y, y, (size_t)1 << 50, NULL, NULL, NULL) == NETCL_STATUS_ARGUMENT);
  CHECK(aethercl_write(gpu, 7, at_y, y, 4, NULL) != NETCL_STATUS_OK);
  fence.value = 1000000;
  CHECK(aethercl_wait(gpu, fence, NULL) == NETCL_STATUS_ARGUMENT);
  CHECK(!aethercl_free(gpu, at_y) && aethercl_free(gpu, at_y) == NETCL_STATUS_ARGUMENT);
  CHECK(!aethercl_free(gpu, at_x));
}

// Copies bytes to the device, runs a kernel on them, and copies them back, with packets written by hand.
static void window(aethercl_machine *gpu, aethercl_program *program) {
  enum { N = 64, BYTES = N * 4, RING = 0x100, DOORBELL = RING + 8, FENCE = RING + 16 };
  float x[N], y[N] = {0};
  for (int i = 0; i < N; i++) x[i] = (float)i + 0.5f;
  unsigned queue;
  uint64_t at_x, at_y, from, to, descriptor;
  CHECK(!aethercl_queue_open(gpu, &queue) && queue == 0);
  aethercl_mmio w, again;
  CHECK(!aethercl_mmio_map(gpu, &w) && !aethercl_mmio_map(gpu, &again) && w.registers == again.registers);
  CHECK(get(w, 0) == 0x4145434c && get(w, 4) == 4 && get(w, RING) > 100);
  CHECK(!aethercl_allocate(gpu, BYTES, "x", &at_x) && !aethercl_allocate(gpu, BYTES, "y", &at_y));
  CHECK(!aethercl_pin(gpu, x, sizeof x, &from) && !aethercl_pin(gpu, NULL, sizeof y, &to));
  const uint64_t global[3] = {N, 1, 1}, local[3] = {32, 1, 1};
  unsigned tail = 0;
#define WORD(value) __atomic_store_n(w.registers + w.rings / 4 + tail++, (unsigned)(value), __ATOMIC_RELEASE)
#define LONG(value) WORD(value), WORD((value) >> 32)
  for (unsigned turn = 1; turn <= 20; turn++) {
    aethercl_argument arguments[2] = {{AETHERCL_BUFFER_READ, at_x, BYTES, NULL}, {AETHERCL_BUFFER, at_y, BYTES, NULL}};
    CHECK(!aethercl_describe(gpu, program, "twice", arguments, 2, global, local, &descriptor));
    WORD(0x20 << 24 | 6), LONG(at_x), LONG(from), LONG((uint64_t)BYTES); // COPY_IN
    WORD(0x30 << 24 | 2), LONG(descriptor);                              // LAUNCH
    WORD(0x21 << 24 | 6), LONG(to), LONG(at_y), LONG((uint64_t)BYTES);   // COPY_OUT
    WORD(0x40 << 24 | 2), LONG((uint64_t)turn);                          // SIGNAL
    set(w, DOORBELL, tail);
    while (get(w, FENCE) != turn) {}
    while (get(w, 0x10) != 1) {}
    set(w, 0x28, 1); // IRQ_CLEAR
    while (get(w, 0x10) != 0) {}
  }
  CHECK(get(w, 0x08) == 0);
  CHECK(!aethercl_unpin(gpu, to, y, sizeof y) && aethercl_unpin(gpu, to, y, 4) == NETCL_STATUS_ARGUMENT);
  for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
  // An invalid command word causes a fault; a reset clears it.
  WORD(0x77u << 24), set(w, DOORBELL, tail);
  while (!(get(w, 0x08) & 2)) {}
  CHECK(get(w, 0x18) == 1 && get(w, 0x1c) == 0);
  set(w, 0x0c, 1);
  while (get(w, 0x08) != 0) {}
  CHECK(!aethercl_mmio_unmap(gpu) && !aethercl_mmio_unmap(gpu));
}

int main(void) {
  aethercl_machine *gpu = NULL, *second = NULL;
  aethercl_program *program = NULL;
  aethercl_options options = {.checks = "all"};
  CHECK(!aethercl_open("teaching", &options, &gpu) && !aethercl_open(NULL, NULL, &second));
  CHECK(aethercl_open("no such", NULL, &second) == NETCL_STATUS_ARGUMENT);
  CHECK(aethercl_build("__kernel void f() { g(); }", NULL, &program) == NETCL_STATUS_BUILD && strstr(netcl_last_error(), "g"));
  CHECK(!aethercl_build(TEXT, "-D N=1", &program));
  functions(gpu, program);
  window(second, program);
  unsigned value;
  CHECK(!aethercl_register_read(gpu, 0, &value) && value == 0x4145434c && !aethercl_register_write(gpu, 0x0c, 1));
  CHECK(!aethercl_program_free(program) && aethercl_program_free(program) == NETCL_STATUS_HANDLE);
  CHECK(!aethercl_close(gpu) && aethercl_close(gpu) == NETCL_STATUS_HANDLE && !aethercl_close(second));
  return finish("machine");
}
