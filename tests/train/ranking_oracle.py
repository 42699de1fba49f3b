"""AUC and log loss of scikit-learn, for ranking_metrics_test.cpp.

python ranking_oracle.py ROWS.json METRICS.json
"""

import json
import sys

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score


def main():
    with open(sys.argv[1]) as file:
        sets = json.load(file)
    metrics = []
    for rows in sets:
        logits, labels = np.array(rows["logits"]), np.array(rows["labels"])
        probabilities = 1 / (1 + np.exp(-logits))
        metrics.append({"auc": roc_auc_score(labels, logits), "log_loss": log_loss(labels, probabilities)})
    with open(sys.argv[2], "w") as file:
        json.dump(metrics, file)


if __name__ == "__main__":
    main()
