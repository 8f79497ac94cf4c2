kernel void predefined(global int *out) {
  out[0] = __LINE__;
  out[1] = __OPENCL_VERSION__ >= 120;
  out[2] = CL_VERSION_1_2;
#ifdef cl_khr_fp64
  out[3] = 1;
#endif
  out[4] = CLK_LOCAL_MEM_FENCE != CLK_GLOBAL_MEM_FENCE;
#line 50
  out[5] = __LINE__;
  out[6] = sizeof(__FILE__) > 1;
}
