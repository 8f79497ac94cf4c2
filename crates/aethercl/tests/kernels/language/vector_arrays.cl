kernel void vector_arrays(global float *out) {
  float4 acc[2][2] = {{(float4)(1.0f), (float4)(2.0f)}, {(float4)(3.0f), (float4)(4.0f)}};
  int id = get_global_id(0);
  acc[id][1 - id].y += 10.0f;
  float4 sum = (float4)(0.0f);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) sum += acc[i][j];
  float parts[4];
  vstore4(sum, 0, parts);
  out[id] = parts[0] + parts[1] * 100.0f;
}
