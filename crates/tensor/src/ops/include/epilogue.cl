/* A generated epilogue of a kernel whose result consists of rows of n elements.
 *
 * TREE_V(v, row, column, n)  the final elements of VW sums v from `column` of `row` on
 * TREE_1(v, row, column, n)  the same for one sum
 *
 * Defines: TREE, the generated functions tree_v and tree_1; TREE_PARAMETERS and TREE_ARGUMENTS, the additional parameters and arguments that they
 * read and write; VW, the width of vectors. Without TREE, the results are the sums.
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
