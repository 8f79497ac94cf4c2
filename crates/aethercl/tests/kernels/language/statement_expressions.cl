/* `({ … })`: statements whose last expression is the value; its variables are its own. */
#define MAX(a, b) ({ const typeof(a) _a = (a); const typeof(b) _b = (b); _a > _b ? _a : _b; })
#define SWAP(a, b) ({ typeof(a) _t = (a); (a) = (b); (b) = _t; })

typedef struct {
  int low, high;
} Pair;

int first_above(global const int *in, int limit) {
  int seen = ({
    for (int i = 0; i < 8; i++) {
      if (in[i] > limit) return i; /* out of the function, from within an expression */
    }
    100;
  });
  return seen + limit;
}

kernel void k(global const int *in, global int *out, global float *sums) {
  int id = get_global_id(0);
  int calls = 0;
  int a = in[id], b = in[(id + 1) % 8];
  out[id] = MAX(a, MAX(b, 3)) + ({ calls++; calls; });
  SWAP(a, b);
  out[8 + id] = a * 100 + b;
  /* Only where it decides: `&&` and `?:` run one side. */
  int ran = 0;
  if (id > 3 && ({ ran += 1; id & 1; })) ran += 10;
  out[16 + id] = ran + (id < 2 ? ({ int t = 1000; t += id; t; }) : ({ 2000; }));
  Pair p = ({ Pair q; q.low = id; q.high = id * 2; q; });
  out[24 + id] = p.low + ({ p; }).high * 10 + first_above(in, id);
  float4 v = ({ float4 w = (float4)(id); w.yz *= 2.0f; w; });
  sums[id] = v.x + v.y + v.z + v.w + ({ float s = 0; for (int i = 0; i < id; i++) { if (i == 5) break; s += i; } s; });
}
