/* Matrix product, step 9 of 9: the persistent kernel of sm_90. Requires NVIDIA sm_90 (wgmma, TMA, setmaxnreg).
 *
 * It is more than a page, so this file has no kernel: the step runs netcl's own product, and its text is matmul_wgmma_sm90.cl in
 * crates/tensor/src/ops/matmul/algorithms, with the list of what is where at its head: the order of work, the tiles, the reduction and
 * the epilogue have a text each. The design is that of CUTLASS's persistent ping-pong and cooperative kernels.
 *
 * Changed against step 8
 *
 *   Persistent           There are as many groups as multiprocessors, and each takes tiles of C one after the other. The cost of
 *                        starting a group is paid once, and the copies for the next tile begin while this one is still stored.
 *
 *   Warp specialisation  A group is three warpgroups of 128 items. One only copies: the producer. Two only multiply: the consumers.
 *                        Nobody waits at a barrier of the whole group; setmaxnreg gives the producer's registers to the consumers.
 *
 *   TMA                  One item asks for a whole tile by one instruction. The copy engine computes addresses, fills up with zeros
 *                        at the edges, and swizzles. Where the rows of a matrix lie is told by a tensor map, made on the host.
 *
 *   mbarriers            Each buffer of the ring has two: `full`, which the arriving bytes complete, and `empty`, which the consumers
 *                        complete. Copies run several buffers ahead of the multiplication.
 *
 *   wgmma                A warpgroup multiplies 64 rows of A with up to 256 columns of B, both straight from local memory: no ldmatrix,
 *                        no fragments in registers but the sums. It runs asynchronously, several at a time.
 *
 *   Ping-pong            Each consumer owns whole tiles. While one stores its tile the other multiplies, so the tensor cores do not
 *                        stand still during the epilogue. For large matrices both share a tile twice as high instead,
 *                        which takes fewer bytes a multiply-add.
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
 * Bound by   the power limit: without loads wgmma reaches about 970 TFLOP/s of dense bf16 on an H200, and the clock falls under
 *            a sustained load. For small matrices, by too few tiles for the multiprocessors; netcl then splits k among groups
 *            (split-K, stream-K).
 *
 * Arguments, defines and launch geometry: see the head of matmul_wgmma_sm90.cl.
 */
