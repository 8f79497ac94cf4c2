// Structs by value and by pointer, nested, with padding, in buffers
typedef struct { char tag; int value; } pair;
typedef struct { pair p[2]; float2 v; } thing;
thing make(int i) {
  thing t = {{{'a', i}, {'b', i * 2}}, (float2)(i, 0.5f)};
  t.p[1].tag += i;
  return t;
}
void twice(thing *t) { t->p[0].value *= 2; t->v.y += 1.0f; }
__kernel void k(__global thing *out, __global int *y) {
  int i = get_global_id(0);
  thing t = make(i), u;
  twice(&t);
  u = t;
  u.p[0].tag = 'z';
  out[i] = u;
  y[2 * i] = out[i].p[0].value + t.p[1].value + t.p[1].tag;
  y[2 * i + 1] = (int)(out[i].v.x * 10.0f + u.v.y) + out[i].p[0].tag;
}
