/* Variables of program scope that kernels write (OpenCL C 2.0): one for all work-items, kept from launch to launch. */
global int counter = 40;
int plain[4] = {1, 2, 3, 4};
static global float scale = 0.5f;
global atomic_int arrivals = ATOMIC_VAR_INIT(0);
const int fixed = 11;
global int *pointer = &plain[2];
struct State {
  int rounds;
  float2 sum;
} state = {3, {1.0f, 2.0f}};

int add(int n) {
  static int calls = 100;
  return atomic_add(&calls, n);
}

kernel void k(global int *out, global float *sums) {
  int id = get_global_id(0);
  atomic_inc(&counter);
  atomic_fetch_add(&arrivals, 2);
  add(1);
  barrier(CLK_GLOBAL_MEM_FENCE);
  if (id == 0) {
    plain[1] += plain[0] * fixed;
    *pointer = 77;
    pointer++;
    *pointer += 1;
    scale *= 8.0f;
    state.sum.y = scale;
    state.rounds++;
  }
  barrier(CLK_GLOBAL_MEM_FENCE);
  if (id < 4) out[id] = plain[id];
  if (id == 4) out[id] = counter;
  if (id == 5) out[id] = atomic_load(&arrivals);
  if (id == 6) out[id] = state.rounds;
  if (id == 7) out[id] = add(0);
  sums[id] = scale + state.sum.x * 10 + state.sum.y * 100;
}
