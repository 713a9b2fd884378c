"""Explanations between the wire and the library."""

from __future__ import annotations

from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from service.pb.genret.v1 import retrieval_service_pb2 as pb

_STATE_NUMBERS = {
    "expanded": pb.EXPLANATION_STATE_EXPANDED,
    "pruned": pb.EXPLANATION_STATE_PRUNED,
    "finished": pb.EXPLANATION_STATE_FINISHED,
    "closed": pb.EXPLANATION_STATE_CLOSED,
}
_STATES = {number: state for state, number in _STATE_NUMBERS.items()}


def explanation_to_proto(explanation: Explanation) -> pb.Explanation:
    """Return the wire's form of an explanation."""
    return pb.Explanation(
        nodes=[_node_to_proto(node) for node in explanation.nodes],
        draws=[
            pb.ExplanationDraw(
                sample=draw.sample,
                draw=draw.draw,
                node=draw.node,
                valid_mass=draw.valid_mass,
                acceptance_probability=draw.acceptance_probability,
                accepted=draw.accepted,
                chosen=draw.chosen,
            )
            for draw in explanation.draws
        ],
        truncated=explanation.truncated,
    )


def explanation_from_proto(message: pb.Explanation) -> Explanation:
    """Return the library's form of an explanation."""
    return Explanation(
        nodes=tuple(_node_from_proto(node) for node in message.nodes),
        draws=tuple(
            ExplanationDraw(
                sample=draw.sample,
                draw=draw.draw,
                node=draw.node,
                valid_mass=draw.valid_mass,
                acceptance_probability=draw.acceptance_probability,
                accepted=draw.accepted,
                chosen=draw.chosen,
            )
            for draw in message.draws
        ),
        truncated=message.truncated,
    )


def _node_to_proto(node: ExplanationNode) -> pb.ExplanationNode:
    return pb.ExplanationNode(
        parent=node.parent,
        depth=node.depth,
        token_id=node.token_id,
        text=node.text,
        logprob=node.logprob,
        total_logprob=node.total_logprob,
        valid_mass=node.valid_mass,
        num_valid=node.num_valid,
        state=_STATE_NUMBERS[node.state],
        candidate_rank=node.candidate_rank,
    )


def _node_from_proto(message: pb.ExplanationNode) -> ExplanationNode:
    return ExplanationNode(
        parent=message.parent if message.HasField("parent") else None,
        depth=message.depth,
        token_id=message.token_id,
        text=message.text,
        logprob=message.logprob,
        total_logprob=message.total_logprob,
        valid_mass=message.valid_mass if message.HasField("valid_mass") else None,
        num_valid=message.num_valid if message.HasField("num_valid") else None,
        state=_STATES[message.state],
        candidate_rank=message.candidate_rank if message.HasField("candidate_rank") else None,
    )
