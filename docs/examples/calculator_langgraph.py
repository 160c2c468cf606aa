"""The agents of calculator_openai.py as a graph with a memory. The program knows langgraph, and nothing of marl_ray."""

import json
import sys
from pathlib import Path

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    solver = ChatOpenAI(model="solver").bind_tools([add])  # the client reads OPENAI_BASE_URL and OPENAI_API_KEY
    checker = ChatOpenAI(model="checker")

    def solve(state: MessagesState) -> dict:
        return {"messages": [solver.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("solve", solve)
    graph.add_node("tools", ToolNode([add], handle_tool_errors=True))
    graph.add_edge(START, "solve")
    graph.add_conditional_edges("solve", tools_condition)
    graph.add_edge("tools", "solve")
    team = graph.compile(checkpointer=MemorySaver())
    settings = {"configurable": {"thread_id": "one"}, "recursion_limit": 8}

    def ask(question: str) -> str:
        try:
            return team.invoke({"messages": [("user", question)]}, settings)["messages"][-1].text
        except GraphRecursionError:
            return ""

    answers = [ask(task["prompt"]), ask(task["second"])]
    right = [answer.strip() == str(result) for answer, result in zip(answers, task["results"], strict=True)]
    check = checker.invoke(f"Is {answers[0].strip()} the answer to: {task['prompt']}").text
    agrees = check.strip() == ("yes" if right[0] else "no")
    print(json.dumps({"rewards": {"solver": sum(right), "checker": float(agrees)}, "metrics": {"right": right[0] * 1}}))


if __name__ == "__main__":
    main()
