"""Parts of a tile, as intervals along its axes."""

Box = tuple[tuple[int, int], ...]  # from where to where along each axis; the first is the place


def meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def boxes_meet(a: Box, b: Box) -> bool:
    for (low, high), (first, last) in zip(a, b):
        if high <= first or last <= low:
            return False
    return True


def covers(a: Box, b: Box) -> bool:
    """Whether b lies in a."""
    for (low, high), (first, last) in zip(a, b):
        if first < low or high < last:
            return False
    return True


def minus(box: Box, cut: Box) -> list[Box]:
    """What is left of a box."""
    if not boxes_meet(box, cut):
        return [box]
    out = []
    for axis, ((low, high), (first, last)) in enumerate(zip(box, cut)):
        head, tail = box[:axis], box[axis + 1 :]
        if low < first:
            out.append((*head, (low, first), *tail))
        if last < high:
            out.append((*head, (last, high), *tail))
        box = (*head, (max(low, first), min(high, last)), *tail)
    return out
