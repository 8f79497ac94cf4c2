#ifndef SCALE_H
#define SCALE_H
#define SCALE_TWICE 200
int scaled(int x) { return x * 100; }
#endif
