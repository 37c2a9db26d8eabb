"""The last scores of a run, also of one that ended because all models were at rest."""

from pfed1bs.runs.late import LATE, due, last_scores


def test_a_run_that_rested_keeps_its_last_score_in_the_rounds_it_would_have_been_judged_after():
    early = [(9, 50.0), (19, 60.0), (24, 70.0)]
    assert last_scores(early, 25, 10, 100) == [70.0] * LATE
    assert last_scores(early, 25, 10, 50) == [50.0, 60.0, 70.0, 70.0, 70.0]  # after 10, 20, 30, 40, 50
    assert last_scores(early[:2], 20, 10, 45) == [50.0, 60.0, 60.0, 60.0, 60.0]  # after 30, 40, 45


def test_a_run_that_went_on_to_its_end_has_the_scores_it_was_given():
    judged = [(number, float(number)) for number in range(7) if due(number, 2, 7)]
    assert last_scores(judged, 7, 2, 7) == [1.0, 3.0, 5.0, 6.0]
    assert last_scores([(number, float(number)) for number in range(8)], 8, 1, 8) == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert last_scores(judged[:2], 7, 2, 7) == [1.0, 3.0]  # nobody answered in the last rounds
