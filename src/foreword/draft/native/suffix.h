// draft/suffix.py and draft/_ways.py in compiled code.
#pragma once
#include "automaton.h"
#include "found.h"

namespace foreword::draft {

// The `budget` nodes of highest reach that `own` at `state` and, unless null, `others` after the
// tokens `recent` know of; paths of `depth`, tokens below `vocabulary`.
Found suffix_draft(const SuffixAutomaton& own, int state, const SuffixAutomaton* others,
                   const std::vector<int>& recent, int budget, int depth, int vocabulary);

}  // namespace foreword::draft
