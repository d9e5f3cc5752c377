"""The order of a sum drawn in the terminal; what repeats is drawn once.

Notation: `X + Y + Z` adds from the left to the right, brackets are sums of their own, `a..b` is a + (a + 1) + ... + b,
`a..b by s` every s-th of them, and `{...}` adds its terms at once; `X -> {...}` adds X with them.
"""

from rich.text import Text
from rich.tree import Tree as Drawing

from crosscheck.order.shapes import runs
from crosscheck.order.tree import Tree, bits_of

__all__ = ["LEGEND", "drawn", "expression"]

LEGEND = (
    "Sums go from the left to the right: X + Y + Z is (X + Y) + Z. a..b: products a to b, one after another; "
    "a..b by s: every s-th of them; {..}: at once; X -> {..}: at once with X."
)
SHORT = 60  # characters of a line
LINES, DEPTH = 30, 10  # of a drawing
MORE = "... and more: --json FILE keeps all"
LONGEST = 4000  # characters that a text may have before it is cut


def expression(tree: Tree) -> str:
    """The whole tree in a line.

    Example:
        >>> expression(Tree.of(8, [[0, 1], [8, 2], [9, 3], [4, 5], [11, 6], [12, 7], [10, 13]]))
        '(0..3) + (4..7)'
        >>> expression(Tree.of(6, [[0, 1, 2], [6, 3, 4, 5]]))
        '{0..2} -> {3..5}'
    """
    return _Drawer(tree).texts[tree.root]


def drawn(tree: Tree) -> Text | Drawing:
    """One line where it is short, else a tree of lines."""
    drawer = _Drawer(tree)
    line = drawer.texts[tree.root]
    if len(line) <= SHORT:
        return Text(line)
    drawing = Drawing(Text(drawer.heading(tree.root)), guide_style="dim")
    drawer.draw(tree.root, drawing)
    return drawing


class _Drawer:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.lines = 0
        self.first = [next(bits_of(span)) for span in tree.spans]
        self.shapes = self._shapes()
        self.texts = {leaf: str(leaf) for leaf in range(tree.leaves)}  # of what is drawn
        for node in sorted(self._drawn_nodes()):
            self.texts[node] = self._text(node)[:LONGEST]

    def _shapes(self) -> list[int]:
        """A number for each term; terms with the same number are the same but for a shift of all products."""
        known: dict[tuple[object, ...], int] = {}
        shapes = [0] * self.tree.leaves
        for terms, kind in zip(self.tree.nodes, self.tree.kinds, strict=True):
            key = (kind, *((shapes[term], self.first[term] - self.first[terms[0]]) for term in terms))
            shapes.append(known.setdefault(key, len(known) + 1))
        return shapes

    def _drawn_nodes(self) -> set[int]:
        """The whole sum, and the sums that are terms of a chain."""
        found, waiting = set[int](), [self.tree.root]
        while waiting:
            node = waiting.pop()
            if node >= self.tree.leaves:
                found.add(node)
                waiting += [term for join in self.chain(node) for term in join]
        return found

    # A chain -----------------------------------------------------------------------------------------------
    def chain(self, node: int) -> list[list[int]]:
        """What joins a sum in turn, up to the node's: products, or sums of one shape; first, where the sum begins.

        Several terms join at once. A node that adds unlike sums is a chain of two.
        """
        joins: list[list[int]] = []  # the last first
        leaves = self.tree.leaves
        while node >= leaves:
            terms = self.tree.terms(node)
            sums = [term for term in terms if term >= leaves]
            if len(sums) == 1:
                joins.append([term for term in terms if term < leaves])
                node = sums[0]
            elif len(terms) > 2:
                return [list(terms), *joins[::-1]]
            elif not sums:
                downwards = bool(joins) and joins[-1][0] < terms[0]
                return [*([term] for term in (terms[::-1] if downwards else terms)), *joins[::-1]]
            else:
                small, large = sorted(terms, key=lambda term: self.tree.spans[term].bit_count())
                if self.shapes[small] == self.shapes[large] or not self._in_turn(small, large, joins):
                    if joins and self.shapes[joins[-1][0]] != self.shapes[small]:
                        break
                    return [[terms[0]], [terms[1]], *joins[::-1]]
                joins.append([small])
                node = large
        return [[node], *joins[::-1]]

    def _in_turn(self, small: int, large: int, joins: list[list[int]]) -> bool:
        """Whether the smaller of two sums is one of several of its shape that join the larger."""
        before = bool(joins) and self.shapes[joins[-1][0]] == self.shapes[small]
        return before or any(self.shapes[term] == self.shapes[small] for term in self.tree.terms(large))

    # In a line ---------------------------------------------------------------------------------------------
    def _text(self, node: int) -> str:
        words: list[tuple[str, str]] = []  # each with what is before it
        for joins in self._groups(self.chain(node)):
            if len(joins[0]) > 1:
                words += [(" -> ", word) for word in _shortened([self._at_once(join) for join in joins])]
            elif joins[0] == [self.first[joins[0][0]]]:
                words += [(" + ", run) for run in runs([join[0] for join in joins])]
            else:
                words += [(" + ", word) for word in _shortened([self._bracketed(join[0]) for join in joins])]
        return words[0][1] + "".join(before + word for before, word in words[1:])

    def _groups(self, joins: list[list[int]]) -> list[list[list[int]]]:
        """Joins in a row that are single products, or have one shape, each shifted by as much as the one before."""
        groups: list[list[list[int]]] = []
        for join in joins:
            last = groups[-1] if groups else []
            if last and self._continues(last, join):
                last.append(join)
            else:
                groups.append([join])
        return groups

    def _continues(self, group: list[list[int]], join: list[int]) -> bool:
        if self._kind(join) != self._kind(group[-1]):
            return False
        starts = [self.first[other[0]] for other in (*group[-2:], join)]
        return join == [starts[-1]] or len(starts) < 3 or starts[2] - starts[1] == starts[1] - starts[0]

    def _kind(self, join: list[int]) -> tuple[object, ...]:
        return tuple((self.shapes[term], self.first[term] - self.first[join[0]]) for term in join)

    def _bracketed(self, term: int) -> str:
        text = self.texts[term]
        return text if term < self.tree.leaves or (text[0] == "{" and text.find("}") == len(text) - 1) else f"({text})"

    def _at_once(self, terms: list[int]) -> str:
        sums = [self._bracketed(term) for term in terms if term >= self.tree.leaves]
        return "{" + ", ".join([*sums, *runs([term for term in terms if term < self.tree.leaves])]) + "}"

    # As a tree ---------------------------------------------------------------------------------------------
    def heading(self, node: int) -> str:
        joins = self.chain(node)
        count = self.tree.spans[node].bit_count()
        if len(joins) == 1:
            return f"sum of {count}, at once"
        return f"sum of {count}" + (", in turn" if len(joins) > 2 else "")

    def draw(self, node: int, drawing: Drawing, depth: int = 1) -> None:
        """Add what a node adds to its drawing."""
        joins = self.chain(node)
        if len(joins) == 1:
            joins = [[term] for term in joins[0]]
        for group in self._groups(joins):
            if group[0] == [self.first[group[0][0]]]:
                for run in runs([join[0] for join in group]):
                    self._line(run, drawing)
                continue
            self._one(group[0], drawing, depth)
            if len(group) > 1:
                self._line(self._again(group), drawing)

    def _one(self, join: list[int], drawing: Drawing, depth: int) -> None:
        text = self._at_once(join) if len(join) > 1 else self.texts[join[0]]
        if len(text) <= SHORT or len(join) > 1:
            self._line(text, drawing)
            return
        below = self._line(self.heading(join[0]), drawing)
        if below is not None and depth < DEPTH:
            self.draw(join[0], below, depth + 1)
        elif below is not None:
            self._line(MORE, below)

    def _line(self, text: str, drawing: Drawing) -> Drawing | None:
        """A line of the drawing; None where there are enough."""
        self.lines += 1
        if self.lines > LINES:
            if self.lines == LINES + 1:
                drawing.add(Text(MORE, style="dim"))
            return None
        return drawing.add(Text(text))

    def _again(self, joins: list[list[int]]) -> str:
        shifts = [f"+ {self.first[join[0]] - self.first[joins[0][0]]}" for join in joins[1:]]
        return f"the same with all products {', '.join(_shortened(shifts))}"


def _shortened(words: list[str]) -> list[str]:
    return [*words[:2], "..", words[-1]] if len(words) > 3 else words
