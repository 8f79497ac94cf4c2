// Four threads share one device and one machine, and free some of each other's handles. Each thread has its own error message.
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, TURNS = 60, N = 512 };

static netcl_device *device;
static aethercl_machine *gpu;
static netcl_tensor *shared[16];

static void *work(void *argument) {
  const int me = (int)(size_t)argument;
  float x[N], y[N];
  for (int i = 0; i < N; i++) x[i] = (float)(i % 7 + me);
  for (int turn = 0; turn < TURNS; turn++) {
    // The thread's own objects: the driver and tensors give correct results.
    void *a = allocate_gpu_memory(0, sizeof x), *b = allocate_gpu_memory(0, sizeof x);
    CHECK(write_host_to_gpu_blocking(0, a, 0, sizeof x, x) && execute_add_on_gpu(0, a, a, b, N) && read_gpu_to_host_blocking(0, b, 0, sizeof y, y));
    for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
    free_gpu_memory(0, a), free_gpu_memory(0, b);
    const size_t shape[1] = {N};
    netcl_tensor *t = NULL, *s = NULL, *p = NULL, *grad = NULL;
    CHECK(!netcl_tensor_create(device, NETCL_F32, shape, 1, x, sizeof x, &t) && !netcl_tensor_parameter(t, "t", &p));
    netcl_tensor *square = NULL;
    CHECK(!netcl_op("square", &p, 1, NULL, 0, &square, 1, NULL) && !netcl_op("sum", &square, 1, NULL, 0, &s, 1, NULL));
    CHECK(!netcl_backward(s, NULL) && !netcl_tensor_grad(p, &grad) && !netcl_tensor_read(grad, y, sizeof y));
    for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
    netcl_tensor_free(t), netcl_tensor_free(s), netcl_tensor_free(p), netcl_tensor_free(square), netcl_tensor_free(grad);
    // The threads share these objects, and the first thread frees them.
    netcl_tensor **slot = &shared[turn % 16], *mine = __atomic_load_n(slot, __ATOMIC_ACQUIRE), *fresh = NULL, *out = NULL;
    netcl_status status = mine ? netcl_op("relu", &mine, 1, NULL, 0, &out, 1, NULL) : NETCL_STATUS_OK;
    CHECK(status == NETCL_STATUS_OK || status == NETCL_STATUS_HANDLE);
    if (out) netcl_tensor_free(out);
    if (mine) netcl_tensor_free(mine);
    CHECK(!netcl_tensor_create(device, NETCL_F32, shape, 1, x, sizeof x, &fresh));
    netcl_tensor_free(__atomic_exchange_n(slot, fresh, __ATOMIC_ACQ_REL));
    // The threads share this machine.
    uint64_t at;
    aethercl_fence fence;
    CHECK(!aethercl_allocate(gpu, sizeof x, NULL, &at) && !aethercl_write(gpu, 0, at, x, sizeof x, NULL));
    CHECK(!aethercl_read(gpu, 0, at, y, sizeof y, NULL, NULL, &fence) && !aethercl_wait(gpu, fence, NULL) && memcmp(x, y, sizeof x) == 0);
    CHECK(!aethercl_free(gpu, at));
    // Each thread has its own error message.
    char name[20];
    snprintf(name, sizeof name, "nothing_%d", me);
    CHECK(netcl_op_describe(name) == NULL && strstr(netcl_last_error(), name));
  }
  return NULL;
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : "auto";
  pthread_t threads[THREADS];
  CHECK(!netcl_driver_device(0, name) && initialize_gpu(0) == 1 && !netcl_device_open(name, &device));
  CHECK(!aethercl_open(NULL, NULL, &gpu) && !aethercl_queue_open(gpu, NULL));
  for (size_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 16; i++) netcl_tensor_free(shared[i]);
  netcl_device_close(device), aethercl_close(gpu), shutdown_driver();
  return finish("threads");
}
