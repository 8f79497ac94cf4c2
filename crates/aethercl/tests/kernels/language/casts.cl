kernel void casts(global int *out, global const float *f) {
  out[0] = (int)f[0];
  out[1] = (int)f[1];
  out[2] = (uchar)300;
  out[3] = (char)200;
  out[4] = (int)(float)16777217;
  out[5] = (bool)0.5f + (bool)0;
  out[6] = (short)70000;
  out[7] = (int)(long)-5;
  out[8] = (uint)(uchar)-1;
  int4 v = (int4)(7);
  out[9] = ((int4)v).w;
  out[10] = ((uchar4)(1, 2, 3, 4)).z;
}
