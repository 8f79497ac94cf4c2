/* Offsets follow alignment; packed has none; a three-lane vector takes the space of four. */
struct mixed { char a; double b; char c; float3 d; short e; };
struct __attribute__((packed)) tight { char a; double b; short c; };
struct __attribute__((aligned(32))) wide { int a; };
union either { char bytes[6]; uint word; };

#define OFFSET(T, m) ((ulong) & ((global T *)0)->m)

kernel void struct_layout(global ulong *out) {
  out[0] = sizeof(struct mixed);
  out[1] = OFFSET(struct mixed, b);
  out[2] = OFFSET(struct mixed, c);
  out[3] = OFFSET(struct mixed, d);
  out[4] = OFFSET(struct mixed, e);
  out[5] = sizeof(struct tight);
  out[6] = OFFSET(struct tight, c);
  out[7] = sizeof(struct wide);
  out[8] = sizeof(union either);
  out[9] = sizeof(float3) + sizeof(char2) + sizeof(size_t);
}
