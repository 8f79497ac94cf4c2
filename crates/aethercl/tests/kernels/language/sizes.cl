kernel void sizes(global int *out, global int *p) {
  int a[5];
  int n = 1;
  out[0] = sizeof(a);
  out[1] = sizeof a[0];
  out[2] = sizeof(p);
  out[3] = sizeof(float4);
  out[4] = sizeof(char3);
  out[5] = sizeof(n++);
  out[6] = n;
  out[7] = vec_step(float3) + vec_step(int) * 10;
  out[8] = sizeof(bool) + sizeof('a');
  out[9] = sizeof((char)1 + (char)1);
}
