/* Additions of OpenCL C 2.0 and 3.0 that kernels use: generic pointers, scoped atomics, linear ids, feature macros. */
int load(int *p) { return *p; }

kernel void k(global int *out, global atomic_int *sum, local int *tile) {
  int id = get_global_linear_id(), own = id * 3;
  tile[get_local_linear_id()] = id + 100;
  work_group_barrier(CLK_LOCAL_MEM_FENCE, memory_scope_work_group);
  out[id] = load(&tile[(id + 1) % 4]) + load(&own);
  atomic_fetch_add_explicit(sum, id, memory_order_relaxed, memory_scope_device);
  int *any = id & 1 ? (int *)&tile[0] : &own;
  out[4 + id] = *any;
  out[8 + id] = get_enqueued_local_size(0) * 1000 + __OPENCL_C_VERSION__;
#ifdef __opencl_c_generic_address_space
  out[8 + id] += 1;
#endif
#ifdef __opencl_c_program_scope_global_variables
  out[8 + id] += 2;
#endif
  out[12 + id] = work_group_reduce_add(id + 1) + work_group_scan_inclusive_max(id) * 100 + popcount(id);
}
