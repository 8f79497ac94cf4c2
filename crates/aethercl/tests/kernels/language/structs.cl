typedef struct {
  float x, y;
} point;

struct box {
  point low, high;
  int tags[3];
  char name[4];
};

float area(struct box b) { return (b.high.x - b.low.x) * (b.high.y - b.low.y); }

struct box grown(struct box b, float by) {
  b.high.x += by;
  b.high.y += by;
  return b;
}

kernel void structs(global float *out, global struct box *boxes, global int *sizes) {
  struct box b = {{1, 2}, {.y = 5, .x = 4}, {7, 8}, "ab"};
  out[0] = area(b);
  out[1] = area(grown(b, 1.0f));
  out[2] = grown(b, 2.0f).high.y;
  boxes[0] = b;
  boxes[1] = grown(boxes[0], 3.0f);
  global struct box *p = boxes + 1;
  p->tags[2] = 9;
  out[3] = p->low.y + p->tags[2] + b.tags[1] + b.tags[2];
  struct box copy = boxes[1];
  copy.low = copy.high;
  out[4] = area(copy);
  out[5] = b.name[1] + b.name[2];
  sizes[0] = sizeof(struct box);
  sizes[1] = sizeof(b.tags);
}
