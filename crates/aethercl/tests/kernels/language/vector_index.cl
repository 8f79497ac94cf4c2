/* Lanes by a number that is known only when it runs. */
kernel void vector_index(global int *out, int4 v) {
  int i = get_global_id(0);
  int4 t = v;
  t[i] = 50;
  out[i * 2] = v[3 - i];
  out[i * 2 + 1] = t.x + t.y + t.z + t.w;
}
