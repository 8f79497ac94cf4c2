kernel void swizzles(global int *out, int4 v, int8 w) {
  vstore4(v.wzyx, 0, out);
  vstore4((int4)(v.xx, v.s3, v.s0), 1, out);
  vstore4(w.even, 2, out);
  vstore4(w.hi, 3, out);
  vstore4((int4)(w.odd.lo, w.lo.hi), 4, out);
  vstore4(w.s7531, 5, out);
  int4 t = v;
  t.xz = (int2)(100, 200);
  t.y += 5;
  t.lo.y *= 2;
  vstore4(t, 6, out);
  t.wx = t.xw;
  t.odd = 7;
  vstore4(t, 7, out);
}
