#define P4(x) ((((x))))
#define P16(x) P4(P4(P4(P4(x))))
#define P256(x) P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(P16(x))))))))))))))))

kernel void k(global int *out) {
  out[0] = P256(P256(P256(P256(P256(1)))));
  out[1] = 2;
}
