struct pair { int a, b; };

int sum(struct pair p) { return p.a + p.b; }

kernel void compound_literals(global int *out) {
  out[0] = sum((struct pair){3, 4});
  struct pair p = (struct pair){.b = 5};
  out[1] = sum(p);
  out[2] = ((struct pair){1, 2}).b;
}
