/* Each group has separate local memory; a barrier makes the writes of an item visible to the others. */
kernel void local_memory(global const int *in, global int *out, local int *given) {
  local int own[4];
  int l = get_local_id(0);
  own[l] = in[get_global_id(0)];
  given[l] = l * 100;
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = own[3 - l] + given[(l + 1) % 4];
}
