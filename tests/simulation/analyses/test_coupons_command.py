"""The command that prints the coupon table."""

from simulation.__main__ import main


def test_the_table_of_a_federation_of_ones_own(capsys):
    assert main(["coupons", "--clients", "4", "--per-round", "2", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| federation | clients | per round | 25% | 50% | 75% | 100% |" in lines
    # All four at once: one round for every share.
    assert lines[-1] == "| yours | 4 | 4 | 1±0 | 1±0 | 1±0 | 1±0 |"


def test_more_clients_a_round_than_there_are_is_one_clear_sentence(capsys):
    assert main(["coupons", "--clients", "4", "--per-round", "9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Clients per round must be 1 to 4")
    assert "Traceback" not in error
