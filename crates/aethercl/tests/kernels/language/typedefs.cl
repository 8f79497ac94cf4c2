typedef float scalar;
typedef scalar vec __attribute__((ext_vector_type(4)));
typedef int row[3];
typedef global const int *input;

kernel void typedefs(input in, global int *out) {
  row r = {1, 2, 3};
  row m[2] = {{1, 2, 3}, {4, 5, 6}};
  unsigned int u = 7;
  unsigned long int l = 8;
  signed s = -9;
  long int k = 10;
  out[0] = in[0] + r[2] + m[1][0];
  out[1] = u + l + s + k;
  vec v = (vec)(1, 2, 3, 4);
  out[2] = v.w + sizeof(vec);
}
