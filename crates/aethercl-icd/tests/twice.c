// Doubles a buffer of 64 integers on the first device; with an argument, writes one element too many.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef void *handle;
#define F(type, name, ...) type (*name)(__VA_ARGS__) = (type (*)(__VA_ARGS__))dlsym(library, #name)
int main(int count, char **arguments) {
    void *library = dlopen(getenv("OCL_ICD_FILENAMES"), RTLD_NOW);
    if (!library) { puts(dlerror()); return 19; }
    F(int, clGetPlatformIDs, unsigned, handle *, unsigned *);
    F(int, clGetDeviceIDs, handle, unsigned long, unsigned, handle *, unsigned *);
    F(handle, clCreateContext, void *, unsigned, handle *, void *, void *, int *);
    F(handle, clCreateCommandQueue, handle, handle, unsigned long, int *);
    F(handle, clCreateBuffer, handle, unsigned long, size_t, void *, int *);
    F(handle, clCreateProgramWithSource, handle, unsigned, const char **, size_t *, int *);
    F(int, clBuildProgram, handle, unsigned, handle *, const char *, void *, void *);
    F(handle, clCreateKernel, handle, const char *, int *);
    F(int, clSetKernelArg, handle, unsigned, size_t, const void *);
    F(int, clEnqueueNDRangeKernel, handle, handle, unsigned, size_t *, size_t *, size_t *, unsigned, handle *, handle *);
    F(int, clEnqueueReadBuffer, handle, handle, unsigned, size_t, size_t, void *, unsigned, handle *, handle *);
    handle platform, device; int e; int data[64]; size_t items = count > 1 ? 65 : 64;
    for (int i = 0; i < 64; i++) data[i] = i;
    clGetPlatformIDs(1, &platform, NULL);
    clGetDeviceIDs(platform, 4, 1, &device, NULL);
    handle context = clCreateContext(NULL, 1, &device, NULL, NULL, &e);
    handle queue = clCreateCommandQueue(context, device, 0, &e);
    handle buffer = clCreateBuffer(context, 1 << 5, sizeof data, data, &e);
    const char *text = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }";
    handle program = clCreateProgramWithSource(context, 1, &text, NULL, &e);
    clBuildProgram(program, 0, NULL, "", NULL, NULL);
    handle kernel = clCreateKernel(program, "twice", &e);
    clSetKernelArg(kernel, 0, sizeof buffer, &buffer);
    if (clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL)) return 18;
    if (clEnqueueReadBuffer(queue, buffer, 1, 0, sizeof data, data, 0, NULL, NULL)) return 17;
    printf("%d\n", data[63]);
    return 0;
}
