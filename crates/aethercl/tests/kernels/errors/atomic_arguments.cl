kernel void k(global float *f, global int *i, global const int *c) {
  atomic_add(f, 1.0f);
  atomic_inc(i);
  atomic_add(i);
  atomic_add(c, 1);
}
