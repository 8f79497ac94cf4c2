// Enumerations, typedefs, sizeof
typedef enum { RED, GREEN = 5, BLUE } color;
typedef float4 pairs[2];
__kernel void k(__global int *y) {
  color c = get_global_id(0) ? BLUE : GREEN;
  y[get_global_id(0)] = c * 100 + sizeof(pairs) + RED + sizeof(float3) + sizeof(y[0]);
}
