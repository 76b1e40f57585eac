"""Cases say what they are, and a wrong description is an error that names the case."""

import numpy as np
import pytest
from dflash_spec.errors import SpecDataError
from dflash_vectors.suite import Case, all_cases, check_case, suite


def case(**changes):
    fields = {
        "slug": "two-rows", "clauses": ("HEAD-001",), "inputs": {}, "catches": "a wrong head", "effect": "output",
        "op": "head.logits", "profile": "zlab",
    }  # fmt: skip
    return Case(**(fields | changes))


def test_an_id_is_made_of_profile_op_and_slug():
    assert case().id == "zlab-head-logits-two-rows"
    assert case(op="block.verify_inputs", slug="tail").id == "zlab-block-verify-inputs-tail"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"slug": "Two_Rows"}, "slug 'Two_Rows'"),
        ({"effect": "annoying"}, "effect 'annoying'"),
        ({"clauses": ()}, "0 clauses"),
        ({"clauses": ("HEAD-001", "HEAD-002", "HEAD-003", "NUM-001")}, "4 clauses"),
        ({"clauses": ("HEAD-999",)}, "no clause HEAD-999"),
        ({"clauses": ("HEAD-004",)}, "HEAD-004 does not hold in profile zlab"),
        ({"blame": {"logit": "HEAD-001"}}, "blame names 'logit'"),
        ({"blame": {"logits": "HEAD-998"}}, "no clause HEAD-998"),
    ],
)
def test_a_case_that_breaks_a_rule_is_named_with_what_was_found(changes, found):
    with pytest.raises(SpecDataError, match=found) as error:
        check_case(case(**changes))
    assert "zlab-head-logits" in str(error.value)


def test_a_composite_may_test_more_than_three_clauses():
    check_case(case(op="draft.block", clauses=("CTX-001", "CTX-002", "CTX-004", "CTX-005", "CTX-006")))


def test_a_suite_of_an_unknown_op_is_refused():
    with pytest.raises(SpecDataError, match=r"no op 'head\.nothing'"):
        suite("head.nothing")(lambda profile: iter(()))


def test_cases_come_in_id_order_and_can_be_chosen_by_profile_op_and_chapter():
    ids = [found.id for found in all_cases()]
    assert ids == sorted(ids)
    chosen = all_cases("ninfer", op="head.argmax")
    assert chosen
    assert {(found.profile, found.op) for found in chosen} == {("ninfer", "head.argmax")}
    assert {found.chapter for found in all_cases(chapter="LAW")} == {"LAW"}


def test_every_case_has_texts_for_people():
    for found in all_cases():
        assert len(found.catches.split()) >= 3, found.id
        assert all(isinstance(value, np.ndarray | int | float | np.generic) for value in found.inputs.values()), (
            found.id
        )
