"""Plain words that needles are named with."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of a line, in alphabetical order."""
    return tuple(sorted(text.split()))


ADJECTIVES = words(
    "amber ancient bitter blank bold brave bright broad calm careful clever cold coral crisp curious dark deep dim "
    "dry early eager faint fair fancy fast fine firm fresh gentle glad golden grand grave green hollow humble icy "
    "idle ivory keen kind large late lazy light little lonely long loud lucky mellow mild misty narrow neat noble odd "
    "pale patient plain polite proud pure quick quiet rapid rare ripe rough round royal rusty salty sharp shy silent "
    "silver simple slow small smooth soft solid sour stern still strange strong sudden sweet swift tall tame tart "
    "tender thin tiny tired true vast violet vivid warm weary wide wild wise witty young"
)
NOUNS = words(
    "acorn anchor apple apron arrow badge bagel barrel basin basket beacon beetle bell bench blanket boat bottle "
    "bridge broom bucket button cabin cactus candle canoe canyon carpet castle cedar chain chair chapel cherry "
    "chimney clock cloud coach comet copper cradle crane crow crown daisy desk donkey door drum eagle engine falcon "
    "farmer feather fence ferry fiddle flag flute forest fountain fox garden gate glacier glove goat grape hammer "
    "harbor harp hat hazel hedge heron hill honey horse island jacket jar kettle kite ladder lake lamp lantern lemon "
    "letter lily lion lobster magnet map maple meadow mill mirror moon moth needle nest oak oar olive onion orchard "
    "otter owl paddle pear pebble pencil piano pigeon pillow pine pocket pond quilt rabbit raft river robin rocket "
    "roof rope saddle sailor salmon scarf shell ship shovel sparrow spoon stable star stove swan table tailor temple "
    "thimble tiger tower train trumpet tulip tunnel turtle valley violin wagon walnut whale wheel willow window wolf"
)
