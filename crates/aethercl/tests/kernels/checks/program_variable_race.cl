/* Two work-items count in one variable without an atomic operation. */
global int counter;
kernel void k(void) {
  counter += 1 + get_global_id(0);
}
