/* Program-scope constants: arrays, structures, strings, addresses of each other. */
struct entry { int key; float value; };
constant struct entry table[] = {{1, 0.5f}, {2, 1.5f}, {.value = 2.5f, .key = 3}};
constant int grid[2][2] = {{1, 2}, {3, 4}};
constant char text[] = "hello";
constant float4 unit = (float4)(1.0f, 2.0f, 3.0f, 4.0f);
constant int *constant second = &grid[1][0];
constant int folded = (3 + 4) * 2 << 1;

float lookup(int key) {
  for (int i = 0; i < 3; i++)
    if (table[i].key == key) return table[i].value;
  return 0.0f;
}

kernel void constants(global float *out) {
  out[0] = lookup(3) + lookup(1);
  out[1] = grid[1][0];
  out[2] = text[1] + sizeof(text);
  out[3] = unit.z;
  out[4] = second[1];
  out[5] = folded;
}
