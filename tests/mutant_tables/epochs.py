"""Mutants of passes over a client's rows."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_epochs.py"

ORACLE = [
    Edit("epochs: every pass has the order of the first", "RowOracle.epoch_batch",
         "number[new]", "0 * number[new]"),
    Edit("epochs: the rows are not ordered anew", "RowOracle.epoch_batch",
         "if len(new):\n    drawn = self._draws.row_orders(self.clients[new], self.sizes[new],"
         " number[new])\n    self._order[new, :drawn.shape[1]] = drawn", "pass"),
    Edit("epochs: the last batch of a pass is as large as the others", "RowOracle.epoch_batch",
         "np.minimum(size, self.sizes - first)", "np.minimum(size, self.sizes)"),
    Edit("epochs: a client that is done goes on", "RowOracle.epoch_batch",
         "np.where(is_done, 0, np.minimum(size, self.sizes - first))",
         "np.minimum(size, self.sizes - first)"),
    Edit("epochs: the smaller batch is left out", "RowOracle.epoch_steps",
         "epochs * -(-self.sizes // b)", "epochs * np.maximum(1, self.sizes // b)"),
    Edit("epochs: all clients count as computing", "RowOracle._count_batch",
         "np.count_nonzero(batch.sizes)", "len(batch.sizes)"),
]  # fmt: skip
STEPS = [
    Edit("epochs: clients that are done move on", "local_training",
         "np.flatnonzero(k < counts)", "np.arange(len(counts))"),
    Edit("epochs: moments are lost once a client is done", "local_training",
         "m[on] = new", "m[on] = 0.0 * new"),
]  # fmt: skip
RANDOM = [
    Edit("epochs: all clients have the same order", "_row_orders",
         "np.uint64(clients[i])", "np.uint64(0)"),
    Edit("epochs: all rounds have the same order", "RoundDraws.row_orders",
         "_key(self._seed, EPOCH, self.round)", "_key(self._seed, EPOCH, 0)"),
]  # fmt: skip

TABLES = {
    "problems/oracle.py": ORACLE, "core/local_steps.py": STEPS, "core/random.py": RANDOM,
}  # fmt: skip
