// Degrees, radians, sign, mix, step, smoothstep, clamp
__kernel void k(__global const float *x, __global float *y) {
  size_t i = get_global_id(0);
  y[i * 7 + 0] = degrees(x[i]);
  y[i * 7 + 1] = radians(x[i]);
  y[i * 7 + 2] = sign(x[i]);
  y[i * 7 + 3] = mix(x[i], 10.0f, 0.25f);
  y[i * 7 + 4] = step(0.5f, x[i]);
  y[i * 7 + 5] = smoothstep(0.0f, 2.0f, x[i]);
  y[i * 7 + 6] = clamp(x[i], -1.0f, 1.0f);
}
