/* Matrix product, step 9 of 9: the persistent kernel of sm_90. Requires NVIDIA sm_90 (wgmma, TMA, setmaxnreg).
 *
 * The kernel is longer than a page, so this file does not contain it. This step runs netcl's own product, matmul_wgmma_sm90.cl in
 * crates/tensor/src/ops/matmul/algorithms, whose header lists its parts: the order of work, the tiles, the reduction and
 * the epilogue have separate files. The design is that of CUTLASS's persistent ping-pong and cooperative kernels.
 *
 * Changed from step 8
 *
 *   Persistent           There is one group per multiprocessor, and each computes several tiles of C in turn. The cost of
 *                        starting a group is paid once, and the copies for the next tile start while this one is still stored.
 *
 *   Warp specialization  A group is three warpgroups of 128 items. One only copies: the producer. Two only multiply: the consumers.
 *                        They do not wait at a barrier of the whole group; setmaxnreg moves the producer's registers to the consumers.
 *
 *   TMA                  One item requests a whole tile with one instruction. The copy engine computes addresses, pads with zeros
 *                        at the edges, and swizzles. A tensor map, created on the host, describes the layout of the matrix.
 *
 *   mbarriers            Each buffer of the ring has two: `full`, which the arriving bytes complete, and `empty`, which the consumers
 *                        complete. Copies run several buffers ahead of the multiplication.
 *
 *   wgmma                A warpgroup multiplies 64 rows of A with up to 256 columns of B, both directly from local memory: without
 *                        ldmatrix, and with only the sums in registers. It runs asynchronously, several at a time.
 *
 *   Ping-pong            Each consumer owns whole tiles. While one stores its tile, the other multiplies, so the tensor cores do not
 *                        idle during the epilogue. For large matrices, both share a tile of twice the height instead,
 *                        which needs fewer bytes per multiply-add.
 *
 * One group:
 *
 *   producer     copy 0 | copy 1 | copy 2 | wait empty 0, copy 3 | …        full: bytes arrived      empty: consumer is done with it
 *                   v        v        v
 *   ring         [ A B ]  [ A B ]  [ A B ]  …                               64 steps of the sum each
 *                   v        v        v
 *   consumer 0   wait full 0, wgmma | wait full 1, wgmma | … | store tile 0             | multiply tile 2 …
 *   consumer 1                                               | multiply tile 1          | store tile 1 …
 *
 * Bound by   the power limit: without loads, wgmma reaches about 970 TFLOP/s of dense bf16 on an H200, and the clock falls under
 *            a sustained load. For small matrices, by too few tiles for the multiprocessors; netcl then splits k between groups
 *            (split-K, stream-K).
 *
 * Arguments, defines and launch geometry: see the header of matmul_wgmma_sm90.cl.
 */
