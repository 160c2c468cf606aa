// Typeset the formulas that the Markdown extension arithmatex has marked, with the copy of KaTeX beside this file.
document.addEventListener("DOMContentLoaded", () => {
  const delimiters = [
    { left: "\\(", right: "\\)", display: false },
    { left: "\\[", right: "\\]", display: true },
  ];
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, { delimiters, throwOnError: true });
  }
});
