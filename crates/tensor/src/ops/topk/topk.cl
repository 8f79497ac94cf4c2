/* topk: the K largest elements of each row, largest first, and among equal elements the lowest index first. A NaN is larger than any number.
 *
 * x (R, N) T, values (R, K) T, indices (R, K) uint. Work-group r owns row r. Four passes count the elements by 8 bits of a key, from the top bits
 * down, until the key of the K-th element is known; keys have the order of the values. If too many elements have that key, up to four more
 * passes over index bits find the last index that is still kept. The K chosen elements are collected in any order, and each counts
 * the elements before it. Keys and indices differ, so the count is its place. Local memory: 256 + 2 K words. Nothing is rounded.
 *
 * Design: radix select (Alabi, Blanchard, Gordon and Steinbach 2012, "Fast k-selection algorithms for graphics processing units").
 * Ceiling: reads x up to nine times, from the cache after the first. H200, 64 rows of 50304 f32: 164 us.
 */
#ifndef K
#define K 8
#endif
#define BINS 256

/* Maps a float to an unsigned key of the same order; every NaN is the largest key, and -0 equals 0. */
static inline uint key_of(float v) {
  const uint u = as_uint(v == 0.0f ? 0.0f : v);
  return isnan(v) ? 0xffffffffu : (u >> 31 ? ~u : u | 0x80000000u);
}

/* Returns the bin of the `wanted`-th largest element (1, 2, …), the same for all items; the number of elements in higher bins is subtracted from
 * `wanted`. */
static uint pick(__local uint *bins, uint *wanted) {
  uint bin = BINS - 1, left = *wanted;
  while (bin > 0 && bins[bin] < left) left -= bins[bin--];
  *wanted = left;
  return bin;
}

__kernel void topk(__global const T *restrict x, __global T *restrict values, __global uint *restrict indices, ulong n) {
  __local uint bins[BINS], keys[K], places[K], found;
  const uint l = get_local_id(0);
  x += get_group_id(0) * n;
  uint key = 0, wanted = K, share = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (uint b = l; b < BINS; b += WG) bins[b] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint above = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    for (uint i = l; i < n; i += WG) {
      const uint u = key_of(LD(x, i));
      if ((u & above) == key) atomic_inc(bins + (u >> shift & 255));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint bin = pick(bins, &wanted);
    key |= bin << shift;
    share = bins[bin];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  /* Places by index among equal elements: the lowest index has the largest ~i. */
  uint last = 0;
  if (share > wanted) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (uint b = l; b < BINS; b += WG) bins[b] = 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      const uint above = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
      for (uint i = l; i < n; i += WG)
        if (key_of(LD(x, i)) == key && (~i & above) == last) atomic_inc(bins + (~i >> shift & 255));
      barrier(CLK_LOCAL_MEM_FENCE);
      last |= pick(bins, &wanted) << shift;
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
  if (l == 0) found = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = l; i < n; i += WG) {
    const uint u = key_of(LD(x, i));
    if (u > key || (u == key && ~i >= last)) {
      const uint place = atomic_inc(&found);
      keys[place] = u;
      places[place] = i;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint a = l; a < K; a += WG) {
    uint before = 0;
    for (uint b = 0; b < K; b++) before += keys[b] > keys[a] || (keys[b] == keys[a] && places[b] < places[a]);
    const ulong to = get_group_id(0) * K + before;
    indices[to] = places[a];
    ST(values, to, LD(x, places[a]));
  }
}
