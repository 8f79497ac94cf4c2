/* A generated epilogue of a kernel whose results are rows of n: what an element becomes instead of its sum, by tree_v for vectors and tree_1
 * for one, which read and write TREE_PARAMETERS. Without TREE nothing changes. VW is that of the vectors.
 */
#ifdef TREE
#if VW == 1
#define TREE_FIRST(v) (v)
#else
#define TREE_FIRST(v) ((v).s0)
#endif
#ifndef WARM
#define WARM(p)
#endif
TREE
#define TREE_V(v, row, column, n) tree_v(v, row, column, n TREE_ARGUMENTS)
#define TREE_1(v, row, column, n) tree_1(v, row, column, n TREE_ARGUMENTS)
#else
#define TREE_PARAMETERS
#define TREE_ARGUMENTS
#define TREE_V(v, row, column, n) (v)
#define TREE_1(v, row, column, n) (v)
#endif
